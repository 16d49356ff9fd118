//! Some calls with their numbers, copied by hand from the kernel's headers and not from the crate's table:
//! one of every kind that is numbered differently somewhere.

use oci_spec::runtime::Arch;
use rustjail::seccomp::Machine;

pub const AUDIT_X86_64: u32 = 0xc000_003e;
pub const AUDIT_X86: u32 = 0x4000_0003;
pub const AUDIT_AARCH64: u32 = 0xc000_00b7;
pub const AUDIT_ARM: u32 = 0x4000_0028;
pub const X32_BIT: u32 = 0x4000_0000;

/// The columns of [`CALLS`]: name in a profile, audit architecture, machine.
pub const ABIS: [(Arch, u32, Machine); 5] = [
    (Arch::ScmpArchX86_64, AUDIT_X86_64, Machine::X86_64),
    (Arch::ScmpArchX86, AUDIT_X86, Machine::X86_64),
    (Arch::ScmpArchX32, AUDIT_X86_64, Machine::X86_64),
    (Arch::ScmpArchAarch64, AUDIT_AARCH64, Machine::Aarch64),
    (Arch::ScmpArchArm, AUDIT_ARM, Machine::Aarch64),
];

const N: Option<u32> = None;

#[rustfmt::skip]
pub const CALLS: &[(&str, [Option<u32>; 5])] = &[
    ("read", [Some(0), Some(3), Some(0x40000000), Some(63), Some(3)]),
    ("write", [Some(1), Some(4), Some(0x40000001), Some(64), Some(4)]),
    ("open", [Some(2), Some(5), Some(0x40000002), N, Some(5)]),
    ("openat", [Some(257), Some(295), Some(0x40000101), Some(56), Some(322)]),
    ("close", [Some(3), Some(6), Some(0x40000003), Some(57), Some(6)]),
    ("mmap", [Some(9), Some(90), Some(0x40000009), Some(222), N]),
    ("mmap2", [N, Some(192), N, N, Some(192)]),
    ("personality", [Some(135), Some(136), Some(0x40000087), Some(92), Some(136)]),
    ("clone", [Some(56), Some(120), Some(0x40000038), Some(220), Some(120)]),
    ("clone3", [Some(435), Some(435), Some(0x400001b3), Some(435), Some(435)]),
    ("execve", [Some(59), Some(11), Some(0x40000208), Some(221), Some(11)]),
    ("socket", [Some(41), Some(359), Some(0x40000029), Some(198), Some(281)]),
    ("accept", [Some(43), N, Some(0x4000002b), Some(202), Some(285)]),
    ("accept4", [Some(288), Some(364), Some(0x40000120), Some(242), Some(366)]),
    ("bind", [Some(49), Some(361), Some(0x40000031), Some(200), Some(282)]),
    ("send", [N, N, N, N, Some(289)]),
    ("recvmsg", [Some(47), Some(372), Some(0x40000207), Some(212), Some(297)]),
    ("socketcall", [N, Some(102), N, N, N]),
    ("ipc", [N, Some(117), N, N, N]),
    ("semop", [Some(65), N, Some(0x40000041), Some(193), Some(298)]),
    ("shmget", [Some(29), Some(395), Some(0x4000001d), Some(194), Some(307)]),
    ("shmat", [Some(30), Some(397), Some(0x4000001e), Some(196), Some(305)]),
    ("rt_sigreturn", [Some(15), Some(173), Some(0x40000201), Some(139), Some(173)]),
    ("ioctl", [Some(16), Some(54), Some(0x40000202), Some(29), Some(54)]),
    ("preadv2", [Some(327), Some(378), Some(0x40000222), Some(286), Some(392)]),
    ("vmsplice", [Some(278), Some(316), Some(0x40000214), Some(75), Some(343)]),
    ("arch_prctl", [Some(158), Some(384), Some(0x4000009e), N, N]),
    ("uretprobe", [Some(335), N, Some(0x4000014f), N, N]),
    ("getuid", [Some(102), Some(24), Some(0x40000066), Some(174), Some(24)]),
    ("getuid32", [N, Some(199), N, N, Some(199)]),
    ("keyctl", [Some(250), Some(288), Some(0x400000fa), Some(219), Some(311)]),
    ("renameat2", [Some(316), Some(353), Some(0x4000013c), Some(276), Some(382)]),
    ("futex", [Some(202), Some(240), Some(0x400000ca), Some(98), Some(240)]),
    ("futex_time64", [N, Some(422), N, N, Some(422)]),
    ("statx", [Some(332), Some(383), Some(0x4000014c), Some(291), Some(397)]),
    ("breakpoint", [N, N, N, N, Some(0xf0001)]),
    ("set_tls", [N, N, N, N, Some(0xf0005)]),
    ("cachestat", [Some(451), Some(451), Some(0x400001c3), Some(451), Some(451)]),
    ("mseal", [Some(462), Some(462), Some(0x400001ce), Some(462), Some(462)]),
    ("file_setattr", [Some(469), Some(469), Some(0x400001d5), Some(469), Some(469)]),
    ("exit_group", [Some(231), Some(252), Some(0x400000e7), Some(94), Some(248)]),
    ("_llseek", [N, Some(140), N, N, Some(140)]),
    ("sync_file_range2", [N, N, N, N, Some(341)]),
    ("arm_sync_file_range", [N, N, N, N, Some(341)]),
    ("newfstatat", [Some(262), N, Some(0x40000106), Some(79), N]),
    ("fstatat64", [N, Some(300), N, N, Some(327)]),
];

/// The first argument that makes socketcall (102) or ipc (117) of x86 do what `name` does.
pub fn multiplexed(name: &str) -> Option<(u32, u32)> {
    Some(match name {
        "socket" => (102, 1),
        "bind" => (102, 2),
        "accept" => (102, 5),
        "send" => (102, 9),
        "recvmsg" => (102, 17),
        "accept4" => (102, 18),
        "semop" => (117, 1),
        "shmat" => (117, 21),
        "shmget" => (117, 23),
        _ => return None,
    })
}
