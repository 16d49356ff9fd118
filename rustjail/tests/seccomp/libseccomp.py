"""Lets the system's libseccomp compile profiles, as runc and crun use it.

In:  {"profiles": [profile, ...]}
Out: {"programs": [hex or {"error": text}, ...], "numbers": {name: {architecture: number}}}
`numbers` has every call libseccomp knows; a negative number means absent from that architecture.
"""

import ctypes
import json
import os
import sys

lib = ctypes.CDLL("libseccomp.so.2")
lib.seccomp_init.restype = ctypes.c_void_p
lib.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
libc = ctypes.CDLL(None)

ARCHES = {
    "SCMP_ARCH_X86_64": 0xC000003E,
    "SCMP_ARCH_X86": 0x40000003,
    "SCMP_ARCH_X32": 0x4000003E,
    "SCMP_ARCH_AARCH64": 0xC00000B7,
    "SCMP_ARCH_ARM": 0x40000028,
}
ACTIONS = {
    "SCMP_ACT_KILL": 0,
    "SCMP_ACT_KILL_THREAD": 0,
    "SCMP_ACT_KILL_PROCESS": 0x80000000,
    "SCMP_ACT_TRAP": 0x30000,
    "SCMP_ACT_ERRNO": 0x50000,
    "SCMP_ACT_TRACE": 0x7FF00000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_ALLOW": 0x7FFF0000,
}
OPERATORS = ["NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"]
EEXIST = 17


class Compare(ctypes.Structure):
    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


def check(code, name=None):
    if code and code != -EEXIST:
        raise OSError(-code, os.strerror(-code), name)


def action(name, errno):
    takes_errno = name in ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE")
    return ACTIONS[name] | ((1 if errno is None else errno) if takes_errno else 0)


def clauses(entry):
    args = [
        Compare(a["index"], 1 + OPERATORS.index(a["op"][9:]), a["value"], a.get("valueTwo") or 0)
        for a in entry.get("args") or []
    ]
    indices = [arg.arg for arg in args]
    return [[arg] for arg in args] if len(set(indices)) < len(indices) else [args]


def compile(profile):
    default = action(profile["defaultAction"], profile.get("defaultErrnoRet"))
    context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(default)))
    try:
        for name in profile.get("architectures") or []:
            check(lib.seccomp_arch_add(context, ctypes.c_uint32(ARCHES[name])))
        for entry in profile.get("syscalls") or []:
            value = action(entry["action"], entry.get("errnoRet"))
            if value == default:
                continue
            for name in entry["names"]:
                number = lib.seccomp_syscall_resolve_name(name.encode())
                for args in clauses(entry):
                    array = (Compare * len(args))(*args)
                    added = lib.seccomp_rule_add_array(context, ctypes.c_uint32(value), number, len(args), array)
                    check(added, name)
        fd = os.memfd_create("program")
        check(lib.seccomp_export_bpf(context, fd))
        os.lseek(fd, 0, 0)
        with os.fdopen(fd, "rb") as file:
            return file.read().hex()
    except OSError as error:
        return {"error": str(error)}
    finally:
        lib.seccomp_release(context)


def numbers():
    found = {}
    for number in [*range(-11000, 600), *range(0xF0000, 0xF0010)]:
        text = lib.seccomp_syscall_resolve_num_arch(ctypes.c_uint32(ARCHES["SCMP_ARCH_ARM"]), number)
        if text:
            name = ctypes.string_at(text)
            found[name.decode()] = {
                arch: lib.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token), name)
                for arch, token in ARCHES.items()
            }
    return found


profiles = json.load(sys.stdin)["profiles"]
json.dump({"programs": [compile(profile) for profile in profiles], "numbers": numbers()}, sys.stdout)
