//! Random profiles and the calls that tell them apart.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction as Action, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompBuilder, LinuxSeccompOperator as Op, LinuxSyscall, LinuxSyscallBuilder,
};

use crate::{
    bpf::Call,
    calls::{ABIS, CALLS, X32_BIT},
};

/// splitmix64: a failing seed is a test case.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// A value near a boundary of one of the halves.
    pub fn value(&mut self) -> u64 {
        let around = self.pick(&[
            0,
            1,
            5,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            1 << 32,
            5 << 32,
            (5 << 32) | 5,
            u64::MAX,
            self.0,
        ]);
        around.wrapping_add(self.pick(&[0, 0, 0, 1, u64::MAX]))
    }

    pub fn action(&mut self) -> (Action, Option<u32>) {
        match self.below(10) {
            0 => (Action::ScmpActKill, None),
            1 => (Action::ScmpActKillThread, None),
            2 => (Action::ScmpActKillProcess, None),
            3 => (Action::ScmpActTrap, None),
            4 => (Action::ScmpActErrno, None),
            5 => (Action::ScmpActErrno, Some(self.pick(&[0, 2, 13, 38, 4094]))),
            6 => (Action::ScmpActTrace, Some(self.pick(&[0, 7, 0xffff]))),
            7 => (Action::ScmpActLog, None),
            _ => (Action::ScmpActAllow, None),
        }
    }

    fn arg(&mut self) -> LinuxSeccompArg {
        const OPS: [Op; 7] = [
            Op::ScmpCmpNe,
            Op::ScmpCmpLt,
            Op::ScmpCmpLe,
            Op::ScmpCmpEq,
            Op::ScmpCmpGe,
            Op::ScmpCmpGt,
            Op::ScmpCmpMaskedEq,
        ];
        let (op, value) = (self.pick(&OPS), self.value());
        let two = if self.chance(4) { self.value() } else { self.value() & value };
        LinuxSeccompArgBuilder::default()
            .index(self.below(6))
            .op(op)
            .value(value)
            .value_two(two)
            .build()
            .unwrap()
    }

    fn entry(&mut self) -> LinuxSyscall {
        let names: Vec<String> = (0..1 + self.below(8)).map(|_| self.pick(CALLS).0.to_owned()).collect();
        let (action, errno) = self.action();
        let mut entry = LinuxSyscallBuilder::default().names(names).action(action).build().unwrap();
        entry.set_errno_ret(errno);
        if self.chance(2) {
            entry.set_args(Some((0..self.below(4)).map(|_| self.arg()).collect()));
        }
        entry
    }

    pub fn profile(&mut self) -> LinuxSeccomp {
        let (action, errno) = self.action();
        let entries: Vec<LinuxSyscall> = (0..self.below(12)).map(|_| self.entry()).collect();
        let mut profile =
            LinuxSeccompBuilder::default().default_action(action).syscalls(entries).build().unwrap();
        profile.set_default_errno_ret(errno);
        if !self.chance(4) {
            let mut archs: Vec<Arch> =
                ABIS.iter().map(|(arch, ..)| *arch).filter(|_| self.chance(2)).collect();
            archs.extend([Arch::ScmpArchNative, Arch::ScmpArchS390x].into_iter().filter(|_| self.chance(4)));
            profile.set_architectures(Some(archs));
        }
        profile
    }

    /// Arguments at and around the values the profile compares with.
    pub fn args(&mut self, profile: &LinuxSeccomp) -> [u64; 6] {
        let compared: Vec<&LinuxSeccompArg> =
            profile.syscalls().iter().flatten().flat_map(|entry| entry.args().iter().flatten()).collect();
        std::array::from_fn(|_| {
            let near = match compared.is_empty() || self.chance(3) {
                true => self.value(),
                false => {
                    let arg = compared[self.below(compared.len())];
                    if self.chance(2) { arg.value() } else { arg.value_two().unwrap_or(0) }
                }
            };
            near.wrapping_add(self.pick(&[0, 0, 0, 0, 1, u64::MAX, 1 << 32]))
        })
    }
}

/// Every number a program could treat specially, on every architecture.
pub fn numbers() -> Vec<(u32, u32)> {
    let mut numbers = Vec::new();
    for audit in ABIS.iter().map(|(_, audit, _)| *audit).chain([0, 0xc000_00f3]) {
        let plain = (0..620).chain([5000, X32_BIT - 1, u32::MAX - 1, u32::MAX]);
        let arm = 0xe_fffe..0xf_0010;
        let x32 = (X32_BIT..X32_BIT + 620).chain([0x8000_0000]);
        numbers.extend(plain.chain(arm).chain(x32).map(|number| (audit, number)));
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Calls of `numbers`, a few more where a profile can look at arguments.
pub fn calls<'a>(
    random: &'a mut Random,
    profile: &'a LinuxSeccomp,
    numbers: &'a [(u32, u32)],
) -> impl Iterator<Item = Call> + 'a {
    numbers.iter().flat_map(move |(audit, number)| {
        let known = ABIS.iter().enumerate().any(|(column, abi)| {
            abi.1 == *audit && CALLS.iter().any(|(_, row)| row[column] == Some(*number))
        });
        let calls: Vec<Call> = (0..if known { 12 } else { 1 })
            .map(|_| {
                let mut args = random.args(profile);
                if matches!(number, 102 | 117) {
                    args[0] = random.below(25) as u64 | if random.chance(3) { 7 << 32 } else { 0 };
                }
                Call { number: *number, audit: *audit, args }
            })
            .collect();
        calls
    })
}
