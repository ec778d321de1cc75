# SPDX-License-Identifier: MIT
"""libcuda by ctypes: the functions that this backend calls, and its errors as DeviceErrors.

Names and types are those of the CUDA driver API reference; a suffix _v2 is the name that
the library exports for the current form of a function. The older form is called where
drivers of CUDA 11.0 have no other and later ones keep it: cuDeviceGetUuid,
cuGraphInstantiate_v2, cuEventElapsedTime.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any, NamedTuple, TypeAlias

from slurm_pal.profiling.node.devices import DeviceError

LIBRARY = "libcuda.so.1"

Handle: TypeAlias = c_void_p
_OUT_HANDLE = POINTER(c_void_p)
_OUT_INT = POINTER(c_int)
_ADDRESS = c_uint64  # CUdeviceptr
_UUID = c_char * 16

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_OUT_INT,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (_OUT_INT,),
    "cuDeviceGet": (_OUT_INT, c_int),
    "cuDeviceGetUuid": (POINTER(_UUID), c_int),
    "cuDeviceGetUuid_v2": (POINTER(_UUID), c_int),
    "cuDeviceGetAttribute": (_OUT_INT, c_int, c_int),
    "cuDeviceCanAccessPeer": (_OUT_INT, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_OUT_HANDLE, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (Handle,),
    "cuCtxEnablePeerAccess": (Handle, c_uint),
    "cuModuleLoadDataEx": (_OUT_HANDLE, c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)),
    "cuModuleGetFunction": (_OUT_HANDLE, Handle, c_char_p),
    "cuModuleUnload": (Handle,),
    "cuFuncSetAttribute": (Handle, c_int, c_int),
    "cuMemAlloc_v2": (POINTER(_ADDRESS), c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemHostAlloc": (_OUT_HANDLE, c_size_t, c_uint),
    "cuMemFreeHost": (Handle,),
    "cuMemcpyDtoH_v2": (Handle, _ADDRESS, c_size_t),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, Handle, c_size_t, Handle),
    "cuMemcpyDtoHAsync_v2": (Handle, _ADDRESS, c_size_t, Handle),
    "cuMemcpyPeerAsync": (_ADDRESS, Handle, _ADDRESS, Handle, c_size_t, Handle),
    "cuStreamCreate": (_OUT_HANDLE, c_uint),
    "cuStreamSynchronize": (Handle,),
    "cuStreamWaitEvent": (Handle, Handle, c_uint),
    "cuStreamDestroy_v2": (Handle,),
    "cuEventCreate": (_OUT_HANDLE, c_uint),
    "cuEventRecord": (Handle, Handle),
    "cuEventSynchronize": (Handle,),
    "cuEventElapsedTime": (POINTER(c_float), Handle, Handle),
    "cuEventDestroy_v2": (Handle,),
    "cuStreamBeginCapture_v2": (Handle, c_int),
    "cuStreamEndCapture": (Handle, _OUT_HANDLE),
    "cuGraphInstantiateWithFlags": (_OUT_HANDLE, Handle, c_ulonglong),
    "cuGraphInstantiate_v2": (_OUT_HANDLE, Handle, _OUT_HANDLE, c_char_p, c_size_t),
    "cuGraphLaunch": (Handle, Handle),
    "cuGraphExecDestroy": (Handle,),
    "cuGraphDestroy": (Handle,),
    "cuLaunchKernel": (Handle, *[c_uint] * 7, Handle, POINTER(c_void_p), POINTER(c_void_p)),
}
GRAPH_MAKERS = ("cuGraphInstantiateWithFlags", "cuGraphInstantiate_v2")
"""Either will do; the first is there from CUDA 11.4 on, and the second is called an old form."""
_UUIDS = ("cuDeviceGetUuid_v2", "cuDeviceGetUuid")
"""The first, from CUDA 11.4 on, names a MIG device, the second its GPU."""
_PEERS = ("cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemcpyPeerAsync")
_PINNED = ("cuMemHostAlloc", "cuMemFreeHost", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
NEEDED_BY: dict[str, tuple[str, ...]] = {
    "tblock": (
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
    ),
    "gemm_bf16_tcgen05": ("cuFuncSetAttribute",),
    "pcie_h2d": _PINNED,
    "pcie_d2h": _PINNED,
    "p2p": _PEERS,
    "allreduce": (*_PEERS, "cuStreamWaitEvent"),
}  # fmt: skip
"""Functions that only these benchmarks call: where a driver lacks one, the others still run."""
_OPTIONAL = frozenset({*GRAPH_MAKERS, *_UUIDS, *(name for names in NEEDED_BY.values() for name in names)})

# Attributes of cuDeviceGetAttribute.
L2_BYTES, CAPABILITY_MAJOR, CAPABILITY_MINOR = 38, 75, 76
MOST_SHARED_BYTES = 8  # of cuFuncSetAttribute: what a launch may give, beyond 48 KiB

_PEER_ACCESS_ALREADY_ENABLED = 704

FAULTS: dict[int, str] = {
    214: "ecc",  # CUDA_ERROR_ECC_UNCORRECTABLE
    220: "xid",  # NVLINK_UNCORRECTABLE
    226: "xid",  # CONTAINED
    700: "xid",  # ILLEGAL_ADDRESS
    702: "xid",  # LAUNCH_TIMEOUT
    714: "xid",  # HARDWARE_STACK_ERROR
    715: "xid",  # ILLEGAL_INSTRUCTION
    716: "xid",  # MISALIGNED_ADDRESS
    717: "xid",  # INVALID_ADDRESS_SPACE
    718: "xid",  # INVALID_PC
    719: "xid",  # LAUNCH_FAILED
}
"""Results after which the context is dead and the driver has logged an Xid: the record's flag for each."""
_JIT = "the driver's compiler for PTX, libnvidia-ptxjitcompiler.so.1"
_HINTS = {
    2: "free the GPU, or measure it alone in an exclusive job",
    34: "this is the toolkit's stub: take its folder out of LD_LIBRARY_PATH",
    46: "another process has the GPU, or its compute mode forbids ours: see nvidia-smi -q -d COMPUTE",
    100: "no NVIDIA GPU is visible to this process: check CUDA_VISIBLE_DEVICES and /dev/nvidia*",
    218: "please report this with the card and the driver",
    221: f"install {_JIT}",
    222: "install a newer driver",
    223: "unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT",
    802: "start nvidia-fabricmanager, which a node with NVSwitch needs",
    803: "library and kernel module are of two versions: load the module anew, or reboot",
    804: "a library for newer drivers is in LD_LIBRARY_PATH that this card cannot use: take it out",
    805: "start the MPS server that CUDA_MPS_PIPE_DIRECTORY names, or unset it",
    999: "often /dev/nvidia-uvm is missing or closed to this user: run nvidia-modprobe -u -c=0; or an Xid: see dmesg",
}
"""What to do, by result."""

_JIT_LOG, _JIT_LOG_BYTES, _LOG_BYTES = 5, 6, 4096  # CU_JIT_ERROR_LOG_BUFFER(_SIZE_BYTES)
_UUID_TEXT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class DeviceLimits(NamedTuple):
    """What decides which kernels a device can run."""

    capability: int  # major * 10 + minor
    l2_bytes: int


class CudaLibrary:
    """libcuda, loaded; nothing is initialised before `start`. Raises DeviceError where it is missing."""

    def __init__(self, path: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(f"libcuda cannot be loaded ({error}): is the NVIDIA driver installed?") from None
        self._functions = {name: self._bind(name, types) for name, types in PROTOTYPES.items()}
        self._started = False

    def _bind(self, name: str, types: tuple[Any, ...]) -> Any:  # noqa: ANN401
        try:
            function = getattr(self._library, name)
        except AttributeError:
            if name in _OPTIONAL:
                return None
            raise DeviceError(f"the NVIDIA driver has no {name}: CUDA 11.0 or later is needed") from None
        function.argtypes, function.restype = types, c_int
        return function

    def has(self, name: str) -> bool:
        """Whether this driver has the function."""
        return self._functions[name] is not None

    def lacks(self, benchmark: str) -> str:
        """Why a benchmark cannot be run by this driver, "" when it can: a function that only it needs."""
        lacking = [name for name in NEEDED_BY.get(benchmark, ()) if not self.has(name)]
        if benchmark == "tblock" and not any(map(self.has, GRAPH_MAKERS)):
            lacking.append(" and no ".join(GRAPH_MAKERS))
        return f"the NVIDIA driver has no {lacking[0]}" if lacking else ""

    def function(self, name: str) -> Any:  # noqa: ANN401
        """The bare function, for calls that must be quick; its result goes to `check`. Raises DeviceError."""
        found = self._functions[name]
        if found is None:
            raise DeviceError(f"the NVIDIA driver has no {name}")
        return found

    def call(self, name: str, *arguments: object) -> None:
        """Call and check. Raises DeviceError."""
        self.check(name, self.function(name)(*arguments))

    def check(self, name: str, code: int, log: bytes = b"") -> None:
        """Raise DeviceError, with the record's flag, unless the code is 0; `log` is what the driver wrote about it."""
        if code:
            said = self._said("cuGetErrorName", code) or f"error {code}"
            text = self._said("cuGetErrorString", code) or "unknown to this driver"
            detail = " ".join(log.decode(errors="replace").split())
            words = [f"{name}: {said} ({text})", detail, _HINTS.get(code, "")]
            raise DeviceError("; ".join(filter(None, words)), FAULTS.get(code, ""))

    def _said(self, name: str, code: int) -> str:
        words = c_char_p()
        self._functions[name](code, ctypes.byref(words))
        return (words.value or b"").decode(errors="replace")

    def integer(self, name: str, *arguments: object) -> int:
        """Result of a function that gives an int by its first argument."""
        value = c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def handle(self, name: str, *arguments: object) -> c_void_p:
        """Result of a function that gives a handle by its first argument."""
        value = c_void_p()
        self.call(name, ctypes.byref(value), *arguments)
        return value

    def module(self, text: bytes) -> c_void_p:
        """PTX compiled for the current context's device; an error holds what the driver's compiler says about it."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_JIT_LOG, _JIT_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        module = c_void_p()
        code = self.function("cuModuleLoadDataEx")(ctypes.byref(module), text, 2, options, values)
        self.check("cuModuleLoadDataEx", code, log.value)
        return module

    def start(self) -> None:
        """Initialise the driver in this process, once; a process that forks afterwards is broken."""
        if not self._started:
            self.call("cuInit", 0)
            self._started = True

    def driver_version(self) -> int:
        """The newest CUDA that the driver serves, e.g. 12080 for 12.8."""
        return self.integer("cuDriverGetVersion")

    def find(self, uuid: str) -> int:
        """The driver's own number of a device it is shown. Raises DeviceError."""
        self.start()
        seen = [self.integer("cuDeviceGet", i) for i in range(self.integer("cuDeviceGetCount"))]
        # "MIG-GPU-<uuid>/7/0", as drivers before 470 name a partition, has the UUID of its GPU.
        named = _UUID_TEXT.search(uuid.lower())
        wanted = named[0].replace("-", "") if named else uuid
        for device in seen:
            if wanted in self._uuids(device):
                return device
        raise DeviceError(f"the driver shows {len(seen)} devices and not {uuid}: check CUDA_VISIBLE_DEVICES")

    def _uuids(self, device: int) -> set[str]:
        found = set()
        for name in filter(self.has, _UUIDS):
            raw = _UUID()
            self.call(name, ctypes.byref(raw), device)
            found.add(raw.raw.hex())
        return found

    def limits(self, device: int) -> DeviceLimits:
        """Compute capability and second-level cache of a device."""
        values = [
            self.integer("cuDeviceGetAttribute", which, device)
            for which in (CAPABILITY_MAJOR, CAPABILITY_MINOR, L2_BYTES)
        ]
        return DeviceLimits(10 * values[0] + values[1], values[2])

    def enable_peer(self, context: c_void_p) -> None:
        """Let the current context reach the memory of `context`."""
        code = self.function("cuCtxEnablePeerAccess")(context, 0)
        if code != _PEER_ACCESS_ALREADY_ENABLED:
            self.check("cuCtxEnablePeerAccess", code)
