/* SPDX-License-Identifier: MIT */
/* A stand-in for libnvidia-ml.so.1 with two GPUs, so that the ctypes layer of
 * nvidia-ml-py is exercised: symbols, argument order and structures are those
 * of the NVML API reference.
 *
 * Every call checks that NVML was initialised by this very process, and that a
 * handle is one; it cannot be initialised in a process that was forked while it
 * was open. FAKE_NVML_LOST   index of a GPU that has fallen off the bus
 *   FAKE_NVML_PIDS   compute processes of GPU 0, "pid:MiB,..."
 *   FAKE_NVML_XID    an Xid that is reported once per event set
 *   FAKE_NVML_GPM    GPU performance monitoring: works, denied, hangs; none without it
 * Compiled with -DOLD_DRIVER it lacks the functions of newer drivers and the
 * power fields.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    LOST = 15,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999
};
enum { GPUS = 2, MAGIC = 0x6770 };
typedef unsigned long long ull;

struct gpu {
    int magic, index;
};
typedef struct gpu *device_t;
struct events {
    ull kinds;
    int xid;
    device_t device;
};

static struct gpu gpus[GPUS] = {{MAGIC, 0}, {MAGIC, 1}};
static pid_t opened_by;
static int references;

static int opened(void) {
    return opened_by == getpid() && references > 0;
}

static int known(device_t device) {
    const char *lost = getenv("FAKE_NVML_LOST");
    if (!opened())
        return UNINITIALIZED;
    if (!device || device->magic != MAGIC)
        return INVALID_ARGUMENT;
    return lost && atoi(lost) == device->index ? LOST : SUCCESS;
}

#define CHECK(device)                                                                                                  \
    do {                                                                                                               \
        int bad_ = known(device);                                                                                      \
        if (bad_)                                                                                                      \
            return bad_;                                                                                               \
    } while (0)
#define ANSWER(device, where, value)                                                                                   \
    do {                                                                                                               \
        CHECK(device);                                                                                                 \
        *(where) = (value);                                                                                            \
        return SUCCESS;                                                                                                \
    } while (0)

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void) flags;
    if (references && opened_by != getpid())
        return UNKNOWN;
    opened_by = getpid();
    references++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!opened())
        return UNINITIALIZED;
    references--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == LOST ? "GPU is lost" : "some error";
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    return opened() ? text(to, size, "570.86.15") : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12080;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!opened())
        return UNINITIALIZED;
    *count = GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    ANSWER(&gpus[index], device, &gpus[index]);
}

static void name_of(device_t device, char *to) {
    sprintf(to, "GPU-00000000-0000-0000-0000-00000000000%d", device->index);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    char name[64];
    for (int i = 0; i < GPUS; i++) {
        name_of(&gpus[i], name);
        if (!strcmp(name, uuid))
            ANSWER(&gpus[i], device, &gpus[i]);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(device_t device, char *to, unsigned size) {
    char name[64];
    CHECK(device);
    name_of(device, name);
    return text(to, size, name);
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(device_t device, struct pci *pci) {
    CHECK(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = 7 + device->index;
    sprintf(pci->bus_id, "%08X:%02X:%02X.0", 0, pci->bus, 0);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t device, char *to, unsigned size) {
    CHECK(device);
    return text(to, size, "NVIDIA Library 80GB");
}
int nvmlDeviceGetSerial(device_t device, char *to, unsigned size) {
    CHECK(device);
    return text(to, size, "1650");
}
int nvmlDeviceGetVbiosVersion(device_t device, char *to, unsigned size) {
    CHECK(device);
    return text(to, size, "96.00");
}
int nvmlDeviceGetMinorNumber(device_t device, unsigned *n) {
    ANSWER(device, n, device->index);
}

struct memory {
    ull total, free, used;
};
struct memory_v2 {
    unsigned version;
    ull total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory) {
    CHECK(device);
    memory->total = 80ULL << 30;
    memory->used = 600ULL << 20; /* the driver's reserve is in it */
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory) {
    CHECK(device);
    if (memory->version != (sizeof *memory | 2u << 24))
        return VERSION_MISMATCH;
    memory->total = 80ULL << 30;
    memory->reserved = 597ULL << 20;
    memory->used = 3ULL << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
#endif

int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *mw) {
    ANSWER(device, mw, 650000);
}
int nvmlDeviceGetPowerManagementDefaultLimit(device_t device, unsigned *mw) {
    ANSWER(device, mw, 700000);
}

int nvmlDeviceGetApplicationsClock(device_t device, int kind, unsigned *mhz) {
    ANSWER(device, mhz, kind == 1 ? 1410 : 1593);
}

int nvmlDeviceGetDefaultApplicationsClock(device_t device, int kind, unsigned *mhz) {
    ANSWER(device, mhz, kind == 1 ? 1755 : 1593);
}

int nvmlDeviceGetEccMode(device_t device, int *now, int *pending) {
    CHECK(device);
    *now = 1;
    *pending = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *pending) {
    CHECK(device);
    *now = device->index == 1;
    *pending = 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(device_t device, int kind, unsigned *mhz) {
    ANSWER(device, mhz, kind == 1 ? 1980 : 2619);
}
int nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned *lanes) {
    ANSWER(device, lanes, 16);
}
int nvmlDeviceGetTotalEnergyConsumption(device_t device, ull *mj) {
    ANSWER(device, mj, 5000000000001ULL);
}

int nvmlDeviceGetTotalEccErrors(device_t device, int kind, int counter, ull *count) {
    if (counter != 0)
        return INVALID_ARGUMENT;
    ANSWER(device, count, kind ? 0 : 7);
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    CHECK(device);
    *corrected = 5;
    *uncorrected = 1;
    *pending = device->index == 1;
    *failed = 0;
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(device_t device, unsigned *count) {
    ANSWER(device, count, 2);
}

struct violation {
    ull reference_us, violation_ns;
};

int nvmlDeviceGetViolationStatus(device_t device, int policy, struct violation *time) {
    CHECK(device);
    if (policy == 5)
        return NOT_SUPPORTED;
    time->reference_us = 1;
    time->violation_ns = (policy + 1) * 1500000000ULL;
    return SUCCESS;
}

struct process {
    unsigned pid;
    ull used;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, struct process *found) {
    const char *at = getenv("FAKE_NVML_PIDS");
    unsigned room = *count;
    CHECK(device);
    *count = 0;
    for (; device->index == 0 && at && *at; (*count)++) {
        char *end;
        unsigned pid = strtoul(at, &end, 10);
        ull mib = strtoull(end + 1, &end, 10);
        at = *end ? end + 1 : end;
        if (*count < room && found) {
            memset(&found[*count], 0xff, sizeof *found);
            found[*count].pid = pid;
            found[*count].used = mib << 20;
        }
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t device, unsigned *count, struct process *found) {
    (void) found;
    ANSWER(device, count, 0);
}

int nvmlDeviceGetPowerUsage(device_t device, unsigned *mw) {
    ANSWER(device, mw, 612000);
}

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *rates) {
    CHECK(device);
    rates->gpu = 98;
    rates->memory = 41;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *degrees) {
    if (sensor != 0)
        return INVALID_ARGUMENT;
    ANSWER(device, degrees, 61);
}

int nvmlDeviceGetClockInfo(device_t device, int kind, unsigned *mhz) {
    ANSWER(device, mhz, kind == 1 ? 1365 : kind == 2 ? 2619 : 0);
}

#ifdef OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, ull *mask) {
    ANSWER(device, mask, 0x24);
}
#else
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, ull *mask) {
    ANSWER(device, mask, 0x4);
}
#endif

int nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned *n) {
    ANSWER(device, n, 5);
}
int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *n) {
    ANSWER(device, n, 8);
}

struct value {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, result;
    union {
        double d;
        unsigned ui;
        unsigned long ul;
        ull ull_;
        long long sll;
        int si;
        unsigned short us;
    } value;
};

int nvmlDeviceGetFieldValues(device_t device, int count, struct value *values) {
    CHECK(device);
    for (int i = 0; i < count; i++) {
        struct value *v = &values[i];
        memset(&v->value, 0xff, sizeof v->value);
        v->type = 1;
        v->result = SUCCESS;
        if (v->scope != 0)
            v->result = INVALID_ARGUMENT;
        else if (v->field == 82)
            v->value.ui = 88;
#ifndef OLD_DRIVER
        else if (v->field == 186)
            v->value.ui = 641500;
        else if (v->field == 185)
            v->value.ui = 612000;
#endif
        else
            v->result = NOT_SUPPORTED;
    }
    return SUCCESS;
}

int nvmlEventSetCreate(struct events **set) {
    if (!opened())
        return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    (*set)->xid = getenv("FAKE_NVML_XID") ? atoi(getenv("FAKE_NVML_XID")) : 0;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t device, ull kinds, struct events *set) {
    CHECK(device);
    set->kinds = kinds;
    set->device = device;
    return SUCCESS;
}

struct event {
    device_t device;
    ull kind, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(struct events *set, struct event *event, unsigned timeout_ms) {
    if (!opened())
        return UNINITIALIZED;
    if (timeout_ms != 0)
        return INVALID_ARGUMENT;
    if (!(set->kinds & 8) || !set->xid)
        return TIMEOUT;
    event->device = set->device;
    event->kind = 8;
    event->data = set->xid;
    event->gpu_instance = event->compute_instance = ~0u;
    set->xid = 0;
    return SUCCESS;
}

#ifndef OLD_DRIVER
struct gpm_sample {
    double at_s; /* 0: never filled */
};
struct gpm_metric {
    unsigned id;
    int result;
    double value;
    const char *short_name, *long_name, *unit;
};
struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *before, *after;
    struct gpm_metric metrics[8]; /* as many as were asked for and more in the caller's */
};
struct gpm_support {
    unsigned version, supported;
};

static int gpm(const char *how) {
    const char *said = getenv("FAKE_NVML_GPM");
    return said && !strcmp(said, how);
}

int nvmlGpmQueryDeviceSupport(device_t device, struct gpm_support *support) {
    CHECK(device);
    if (support->version != 1)
        return VERSION_MISMATCH;
    support->supported = getenv("FAKE_NVML_GPM") != NULL;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    if (!opened())
        return UNINITIALIZED;
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(device_t device, struct gpm_sample *sample) {
    struct timespec now;
    CHECK(device);
    if (gpm("denied"))
        return NO_PERMISSION;
    if (gpm("hangs"))
        sleep(3600);
    clock_gettime(CLOCK_MONOTONIC, &now);
    sample->at_s = now.tv_sec + 1e-9 * now.tv_nsec;
    return SUCCESS;
}

int nvmlGpmMetricsGet(struct gpm_metrics *wanted) {
    if (wanted->version != 1)
        return VERSION_MISMATCH;
    if (!wanted->before->at_s || wanted->after->at_s < wanted->before->at_s + 0.1)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < wanted->count; i++) {
        struct gpm_metric *m = &wanted->metrics[i];
        m->result = SUCCESS;
        m->value = m->id == 5 ? 61.0 : m->id == 10 ? 42.5 : m->id == 12 ? 12.0 : m->id == 13 ? 0.0 : 99.0;
        if (m->id == 11)
            m->result = NOT_SUPPORTED; /* its value means nothing then */
    }
    return SUCCESS;
}
#endif
