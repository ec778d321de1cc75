/* SPDX-License-Identifier: MIT */
/* A libcuda for tests: host memory for device memory, and the kernels' real
 * arithmetic on the host.
 *
 * Streams are queues that are worked off only when somebody waits, the stream
 * that is waited for first and others only as far as its events ask for them:
 * whatever the real device may delay is delayed here, so a missing wait gives
 * wrong numbers. Time is virtual. Handles are checked against contexts as the
 * driver does, memory has guards at both ends, and all that lives is counted.
 *
 * The double_ functions are the tests' own way in. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels.cu"

enum { MOST_DEVICES = 8, GUARD = 256, MOST_FAULTS = 8 };
enum {
    OK,
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    NO_BINARY = 209,
    PTX_VERSION = 222,
    BAD_HANDLE = 400,
    NOT_FOUND = 500
};

typedef struct {
    int device, references, peers; /* peers: a bit for each device that it may reach */
} Context;
typedef struct {
    Context *context;
    char *text;
} Module;
typedef struct {
    void (*run)(const void *);
    const char *name;
    size_t size;
} Kernel;
typedef struct {
    Module *module;
    const Kernel *kernel;
    unsigned threads, shared; /* shared: the most bytes that a launch may give */
} Function;
typedef struct Memory {
    struct Memory *next;
    char *start;
    size_t size;
    Context *context;
} Memory;
typedef struct Stream Queue;
typedef struct {
    Context *context;
    int timed, issued, completed;
    double at_s;
    Queue *queue;
} Event;
typedef struct Op {
    struct Op *next;
    enum { RUN, MOVE, RECORD, WAIT } kind;
    Function *function;
    Index grid;
    char argument[128];
    void *to;
    const void *from;
    size_t size;
    Event *event;
    int number;
} Op;
typedef struct {
    Op *first, **last;
} Graph; /* also made ready to run: the same list */
struct Stream {
    Queue *next;
    Context *context;
    Op *first, **last;
    double clock_s;
    Graph *capture;
};

/* ---- the machine, as the tests want it */

static struct {
    int devices, capability, l2_bytes, driver, peers;
    long long memory;
} machine;
static double launch_s = 1e-5, byte_s = 1e-11;
static Context contexts[MOST_DEVICES];
static Context *current;
static Memory *memories;
static Queue *queues;
static long long used;
static int started, live, damaged, dead, links;
static struct {
    char name[64];
    int code, after;
} faults[MOST_FAULTS];

void double_reset(int devices, int capability) {
    machine.devices = devices;
    machine.capability = capability;
    machine.l2_bytes = 4096;
    machine.driver = 12090;
    machine.peers = 1;
    machine.memory = 1LL << 30;
    launch_s = 1e-5;
    started = damaged = dead = links = fibers_eager = fibers_hasty = fibers_conflicts = 0;
    memset(faults, 0, sizeof faults);
}

void double_heal(void) {
    memset(faults, 0, sizeof faults);
}
void double_memory(long long bytes) {
    machine.memory = bytes;
}
void double_driver(int version) {
    machine.driver = version;
}
void double_l2(int bytes) {
    machine.l2_bytes = bytes;
}
/* 0: no device reaches another; 1: all do; 2: all do, and what is copied does
 * not arrive */
void double_peers(int reach) {
    machine.peers = reach;
}
void double_launch_s(double seconds) {
    launch_s = seconds;
}
void double_eager(int eager) {
    fibers_eager = eager;
}
void double_hasty(int hasty) {
    fibers_hasty = hasty;
}
/* How many times one context was let into another. */
int double_links(void) {
    return links;
}
int double_live(void) {
    return live;
}
int double_conflicts(void) {
    return fibers_conflicts;
}
int double_damaged(void) {
    return damaged;
}

/* The call (or the running kernel) of this name fails with `code`, after so
 * many that succeed. */
void double_fail(const char *name, int code, int after) {
    for (int i = 0; i < MOST_FAULTS; i++)
        if (!faults[i].code) {
            snprintf(faults[i].name, sizeof faults[i].name, "%s", name);
            faults[i].code = code;
            faults[i].after = after;
            return;
        }
}

int double_fault(const char *name) {
    for (int i = 0; i < MOST_FAULTS; i++)
        if (faults[i].code && !strcmp(faults[i].name, name) && faults[i].after-- <= 0)
            return faults[i].code;
    return OK;
}

/* What this kernel computes is wrong by its first number. */
static char spoilt[64];
void double_spoil(const char *name) {
    snprintf(spoilt, sizeof spoilt, "%s", name);
}

/* In a process that the tests do not begin themselves: a healthy machine, or one in
 * which a kernel is spoilt or fails. */
__attribute__((constructor)) static void from_environment(void) {
    const char *capability = getenv("DOUBLE_CAPABILITY"), *spoil = getenv("DOUBLE_SPOIL");
    const char *broken = getenv("DOUBLE_BREAK");
    double_reset(2, capability ? atoi(capability) : 80);
    double_spoil(spoil ? spoil : "");
    if (broken)
        double_fail(broken, 719, 0);
}

#define CALL(name)                                                                                                     \
    do {                                                                                                               \
        int code_ = double_fault(name);                                                                                \
        if (dead || code_)                                                                                             \
            return dead ? dead : code_;                                                                                \
        if (!started)                                                                                                  \
            return 3; /* CUDA_ERROR_NOT_INITIALIZED */                                                                 \
    } while (0)

/* The same for calls that work in the thread's context. */
#define CALL_HERE(name)                                                                                                \
    do {                                                                                                               \
        CALL(name);                                                                                                    \
        if (!current || !current->references)                                                                          \
            return current ? 709 : 201; /* CUDA_ERROR_CONTEXT_IS_DESTROYED, _INVALID_CONTEXT */                        \
    } while (0)

static int broken(int code) {
    dead = code; /* as after a real fault, until the context is gone */
    return code;
}

/* ---- kernels */

#define RUNNER(name, type)                                                                                             \
    static void run_##name(const void *p) {                                                                            \
        name(*(const type *) p);                                                                                       \
    }
/* clang-format off */
#define EACH_KERNEL(X) \
    X(normal_fill, Normal) \
    X(hbm_triad, Stream) \
    X(hbm_copy, Stream) \
    X(ring_add, Stream) \
    X(gemm_fp32, Gemm) \
    X(gemm_fp64, Gemm) \
    X(gemm_fp64_scalar, Gemm) \
    X(gemm_fp16_wmma, Gemm) \
    X(gemm_bf16_wgmma, Gemm) \
    X(gemm_bf16_tcgen05, Gemm) \
    X(gemm_bf16_nt, Gemm) \
    X(gemm_bf16_nn, Gemm) \
    X(gemm_bf16_tn, Gemm) \
    X(gemm_fp16_nt, Gemm) \
    X(gemm_tf32_nt, Gemm) \
    X(layer_norm, Norm) \
    X(layer_norm_back, Norm) \
    X(layer_norm_parts, Norm) \
    X(column_sums, Columns) \
    X(softmax, Softmax) \
    X(softmax_back, Softmax) \
    X(gelu, Gelu) \
    X(gelu_back, Gelu)
/* clang-format on */
EACH_KERNEL(RUNNER)
static void run_empty(const void *p) {
    (void) p;
    empty();
}
#define ROW_OF(name, type) {run_##name, #name, sizeof(type)},
static const Kernel kernels[] = {EACH_KERNEL(ROW_OF){run_empty, "empty", 0}};

/* ---- queues */

static int work_off(Queue *queue, Event *until, int number);

static int carry_out(Queue *queue, Op *op) {
    int code = OK;
    if (op->kind == RUN) {
        code = double_fault(op->function->kernel->name);
        queue->clock_s += launch_s;
        if (!code && fibers_run(op->function->kernel->run, op->argument, op->grid, op->function->threads))
            code = 719;      /* CUDA_ERROR_LAUNCH_FAILED */
        if (tensor.reserved) /* a block has ended without giving its words of tensor memory back */
            code = 719;
        tensor.reserved = 0;
        if (!strcmp(op->function->kernel->name, spoilt))
            *(uint16_t *) ((const Gemm *) op->argument)->c.data ^= 0x8000;
    } else if (op->kind == MOVE) {
        queue->clock_s += byte_s * (double) op->size;
        memcpy(op->to, op->from, op->size);
    } else if (op->kind == RECORD) {
        op->event->completed = op->number;
        op->event->at_s = queue->clock_s;
    } else if (op->event->queue && op->event->completed < op->number) {
        code = work_off(op->event->queue, op->event, op->number);
    }
    if (op->kind == WAIT && op->event->at_s > queue->clock_s)
        queue->clock_s = op->event->at_s;
    return code ? broken(code) : OK;
}

/* All of a queue, or until an event has been reached. */
static int work_off(Queue *queue, Event *until, int number) {
    while (queue->first && !(until && until->completed >= number)) {
        Op *op = queue->first;
        queue->first = op->next;
        if (!queue->first)
            queue->last = &queue->first;
        if (!dead)
            carry_out(queue, op);
        free(op);
    }
    return dead;
}

/* What is freed may still be wanted by work that is queued: it is done first,
 * or dropped after a fault. */
static void settle(void) {
    for (Queue *queue = queues; queue; queue = queue->next)
        work_off(queue, NULL, 0);
}

static void forget(Op *op) {
    while (op) {
        Op *next = op->next;
        free(op);
        op = next;
    }
}

static int enqueue(Queue *queue, Op op) {
    if (!queue || queue->context != current)
        return BAD_HANDLE;
    Op *kept = malloc(sizeof *kept), ***last = queue->capture ? &queue->capture->last : &queue->last;
    *kept = op;
    kept->next = NULL;
    **last = kept;
    *last = &kept->next;
    return OK;
}

/* ---- the driver */

int cuInit(unsigned flags) {
    if (double_fault("cuInit"))
        return double_fault("cuInit");
    if (flags || !machine.devices)
        return flags ? INVALID : NO_DEVICE;
    started = 1;
    return OK;
}

int cuDriverGetVersion(int *version) {
    *version = machine.driver;
    return OK;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

static int say(int code, const char **words, int name) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *words = name ? errors[i].name : errors[i].text;
            return OK;
        }
    *words = NULL;
    return INVALID;
}
int cuGetErrorName(int code, const char **words) {
    return say(code, words, 1);
}
int cuGetErrorString(int code, const char **words) {
    return say(code, words, 0);
}

int cuDeviceGetCount(int *count) {
    CALL("cuDeviceGetCount");
    *count = machine.devices;
    return OK;
}
int cuDeviceGet(int *device, int ordinal) {
    CALL("cuDeviceGet");
    *device = ordinal;
    return ordinal < machine.devices ? OK : 101;
}
/* GPU-00000000-0000-0000-0000-0000000000NN */
int cuDeviceGetUuid(char *uuid, int device) {
    CALL("cuDeviceGetUuid");
    memset(uuid, 0, 16);
    uuid[15] = (char) device;
    return OK;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
    CALL("cuDeviceGetAttribute");
    (void) device;
    *value = which == 75 ? machine.capability / 10 : which == 76 ? machine.capability % 10 : machine.l2_bytes;
    return which == 75 || which == 76 || which == 38 ? OK : INVALID;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    CALL("cuDeviceCanAccessPeer");
    *can = machine.peers && device != peer;
    return OK;
}

int cuDevicePrimaryCtxRetain(Context **context, int device) {
    CALL("cuDevicePrimaryCtxRetain");
    *context = &contexts[device];
    (*context)->device = device;
    (*context)->references++;
    live++;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    if (!--contexts[device].references)
        contexts[device].peers = 0;
    live--;
    if (!live)
        dead = 0;
    return OK;
}
int cuCtxSetCurrent(Context *context) {
    CALL("cuCtxSetCurrent");
    current = context;
    return OK;
}
int cuCtxEnablePeerAccess(Context *peer, unsigned flags) {
    CALL_HERE("cuCtxEnablePeerAccess");
    if (flags || peer == current)
        return INVALID;
    if (peer->references <= 0)
        return BAD_HANDLE;
    if (current->peers & 1 << peer->device)
        return 704; /* CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED */
    current->peers |= 1 << peer->device;
    links++;
    return OK;
}

/* It must be asked for its compiler's words, and has some when it fails. */
int cuModuleLoadDataEx(Module **module, const char *text, unsigned options, int *names, void **values) {
    if (options != 2 || names[0] != 5 || names[1] != 6)
        return INVALID;
    int code = double_fault("cuModuleLoadDataEx");
    if (code) {
        snprintf(values[0], (size_t) values[1], "ptxas application ptx input, line 8;\n error : no such thing\n");
        return code;
    }
    CALL_HERE("");
    const char *version = strstr(text, ".version "), *target = strstr(text, ".target sm_");
    if (!version || !target || atoi(version + 9) > (machine.driver >= 12000 ? 8 : 7))
        return PTX_VERSION;
    int made_for = atoi(target + 11), alone = !strncmp(target + 8, "sm_90a\n", 7);
    int family = !strncmp(target + 8, "sm_100f\n", 8), cousin = machine.capability == 100 || machine.capability == 103;
    if (!strncmp(version + 9, "8.8", 3) && machine.driver < 12090)
        return PTX_VERSION;
    if (made_for > machine.capability || (alone && made_for != machine.capability) || (family && !cousin))
        return NO_BINARY;
    *module = malloc(sizeof **module);
    (*module)->context = current;
    (*module)->text = strdup(text);
    live++;
    return OK;
}
int cuModuleUnload(Module *module) {
    settle();
    free(module->text);
    free(module);
    live--;
    return OK;
}
/* The parameter's size and the block's threads must be what the PTX says. */
int cuModuleGetFunction(Function **function, Module *module, const char *name) {
    CALL_HERE("cuModuleGetFunction");
    char head[96];
    snprintf(head, sizeof head, ".visible .entry %s(", name);
    const char *entry = strstr(module->text, head);
    if (!entry)
        return NOT_FOUND;
    const char *body = strchr(entry, '{'), *size = strstr(entry, "_param_0["), *threads = strstr(entry, ".maxntid ");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name)) {
            size_t bytes = size && size < body ? (size_t) atoi(size + 9) : 0;
            if (bytes != kernels[i].size || !threads || threads > body)
                return INVALID;
            static Function found[64]; /* a function lives as long as its module */
            static int next;
            *function = &found[next++ % 64];
            (*function)->module = module;
            (*function)->kernel = &kernels[i];
            (*function)->threads = (unsigned) atoi(threads + 9);
            (*function)->shared = 48 << 10;
            return OK;
        }
    return NOT_FOUND;
}

static int take(char **address, size_t size) {
    if (used + (long long) size > machine.memory)
        return NO_MEMORY;
    size_t whole = (size + 2 * GUARD + 255) / 256 * 256;
    char *start = aligned_alloc(256, whole);
    Memory *one = malloc(sizeof *one);
    memset(start, 0xa5, whole);
    memset(start + GUARD, 0x7f, size); /* what is not written is NaN in every
                                          format but bf16's high numbers */
    *one = (Memory){memories, start, size, current};
    memories = one;
    used += (long long) size;
    live++;
    *address = start + GUARD;
    return OK;
}
static int give(char *address) {
    settle();
    for (Memory **at = &memories; *at; at = &(*at)->next)
        if ((*at)->start + GUARD == address) {
            Memory *one = *at;
            for (int i = 0; i < GUARD; i++)
                if ((unsigned char) one->start[i] != 0xa5 ||
                    (unsigned char) one->start[GUARD + one->size + (size_t) i] != 0xa5) {
                    damaged++;
                    break;
                }
            *at = one->next;
            used -= (long long) one->size;
            free(one->start);
            free(one);
            live--;
            return OK;
        }
    return INVALID;
}
static Memory *owner(const char *address, size_t size) {
    for (Memory *one = memories; one; one = one->next)
        if (address >= one->start + GUARD && address + size <= one->start + GUARD + one->size)
            return one;
    return NULL;
}

int cuMemAlloc_v2(char **address, size_t size) {
    CALL_HERE("cuMemAlloc_v2");
    return take(address, size);
}
int cuMemFree_v2(char *address) {
    return give(address);
}
int cuMemHostAlloc(char **address, size_t size, unsigned flags) {
    CALL_HERE("cuMemHostAlloc");
    (void) flags;
    return take(address, size);
}
int cuMemFreeHost(char *address) {
    return give(address);
}

int cuMemcpyDtoH_v2(void *to, const char *from, size_t size) {
    CALL_HERE("cuMemcpyDtoH_v2");
    if (!owner(from, size))
        return INVALID;
    memcpy(to, from, size);
    return OK;
}
static int move(void *to, const void *from, size_t size, Queue *queue) {
    if (!owner(to, size) || !owner(from, size))
        return INVALID;
    Op op = {.kind = MOVE, .to = to, .from = from, .size = size};
    return enqueue(queue, op);
}
int cuMemcpyHtoDAsync_v2(char *to, const void *from, size_t size, Queue *queue) {
    CALL_HERE("cuMemcpyHtoDAsync_v2");
    return move(to, from, size, queue);
}
int cuMemcpyDtoHAsync_v2(void *to, const char *from, size_t size, Queue *queue) {
    CALL_HERE("cuMemcpyDtoHAsync_v2");
    return move(to, from, size, queue);
}
int cuMemcpyPeerAsync(char *to, Context *to_context, const char *from, Context *from_context, size_t size,
                      Queue *queue) {
    CALL_HERE("cuMemcpyPeerAsync");
    const Memory *target = owner(to, size), *source = owner(from, size);
    if (!target || !source || target->context != to_context || source->context != from_context)
        return INVALID;
    Op op = {.kind = MOVE, .to = to, .from = from, .size = machine.peers == 2 && to_context != from_context ? 0 : size};
    Context *before = current; /* a copy may be queued whatever the current context */
    current = queue->context;
    int code = enqueue(queue, op);
    current = before;
    return code;
}

int cuStreamCreate(Queue **queue, unsigned flags) {
    CALL_HERE("cuStreamCreate");
    (void) flags;
    *queue = calloc(1, sizeof **queue);
    (*queue)->context = current;
    (*queue)->last = &(*queue)->first;
    (*queue)->next = queues;
    queues = *queue;
    live++;
    return OK;
}
int cuStreamSynchronize(Queue *queue) {
    CALL_HERE("cuStreamSynchronize");
    if (queue->capture)
        return 900; /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
    return work_off(queue, NULL, 0);
}
int cuStreamWaitEvent(Queue *queue, Event *event, unsigned flags) {
    CALL_HERE("cuStreamWaitEvent");
    (void) flags;
    Op op = {.kind = WAIT, .event = event, .number = event->issued};
    return enqueue(queue, op);
}
int cuStreamDestroy_v2(Queue *queue) {
    settle();
    Queue **at = &queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    forget(queue->first);
    if (queue->capture)
        forget(queue->capture->first);
    free(queue->capture);
    free(queue);
    live--;
    return OK;
}

int cuStreamBeginCapture_v2(Queue *queue, int mode) {
    CALL_HERE("cuStreamBeginCapture_v2");
    if (mode != 1 || queue->capture)
        return INVALID;
    queue->capture = calloc(1, sizeof *queue->capture);
    queue->capture->last = &queue->capture->first;
    return OK;
}
int cuStreamEndCapture(Queue *queue, Graph **graph) {
    CALL_HERE("cuStreamEndCapture");
    *graph = queue->capture;
    queue->capture = NULL;
    live++;
    return *graph ? OK : INVALID;
}
int cuGraphInstantiate_v2(Graph **ready, const Graph *graph, void *node, char *log, size_t size) {
    CALL_HERE("cuGraphInstantiate_v2");
    if (node || log || size)
        return INVALID;
    Op **last = &(*ready = calloc(1, sizeof **ready))->first;
    for (const Op *op = graph->first; op; op = op->next) {
        *last = malloc(sizeof **last);
        **last = *op;
        (*last)->next = NULL;
        last = &(*last)->next;
    }
    live++;
    return OK;
}
int cuGraphLaunch(const Graph *ready, Queue *queue) {
    CALL_HERE("cuGraphLaunch");
    int code = OK;
    for (const Op *op = ready->first; op && !code; op = op->next)
        code = enqueue(queue, *op);
    return code;
}
int cuGraphDestroy(Graph *graph) {
    forget(graph->first);
    free(graph);
    live--;
    return OK;
}
int cuGraphExecDestroy(Graph *ready) {
    return cuGraphDestroy(ready);
}

int cuEventCreate(Event **event, unsigned flags) {
    CALL_HERE("cuEventCreate");
    *event = calloc(1, sizeof **event);
    (*event)->context = current;
    (*event)->timed = !(flags & 2);
    live++;
    return OK;
}
int cuEventRecord(Event *event, Queue *queue) {
    CALL_HERE("cuEventRecord");
    if (event->context != queue->context)
        return BAD_HANDLE;
    event->queue = queue;
    Op op = {.kind = RECORD, .event = event, .number = ++event->issued};
    return enqueue(queue, op);
}
int cuEventSynchronize(Event *event) {
    CALL("cuEventSynchronize");
    return event->queue ? work_off(event->queue, event, event->issued) : OK;
}
int cuEventElapsedTime(float *milliseconds, const Event *start, const Event *end) {
    CALL("cuEventElapsedTime");
    if (!start->timed || !end->timed || start->completed < start->issued || end->completed < end->issued)
        return 600; /* CUDA_ERROR_NOT_READY */
    *milliseconds = (float) (1e3 * (end->at_s - start->at_s));
    return OK;
}
int cuEventDestroy_v2(Event *event) {
    settle();
    free(event);
    live--;
    return OK;
}

/* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
int cuFuncSetAttribute(Function *function, int which, int value) {
    CALL_HERE("cuFuncSetAttribute");
    if (which != 8 || value < 0 || value > 227 << 10)
        return INVALID;
    function->shared = (unsigned) value;
    return OK;
}
/* What a kernel must be given: less, and it would write beyond it. */
static unsigned shared_of(const Kernel *kernel) {
    return kernel->run == run_gemm_bf16_tcgen05 ? SUM_SHARED_BYTES : 0;
}
int cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Queue *queue, void **parameters, void **extra) {
    CALL_HERE("cuLaunchKernel");
    if (extra || shared > function->shared || shared != shared_of(function->kernel) || by != 1 || bz != 1 ||
        bx != function->threads || !gx || !gy || gz != 1)
        return INVALID;
    if (function->module->context != current)
        return BAD_HANDLE;
    Op op = {.kind = RUN, .function = function, .grid = {gx, gy, gz}};
    memcpy(op.argument, parameters ? parameters[0] : "", function->kernel->size);
    return enqueue(queue, op);
}
