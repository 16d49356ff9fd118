//! The eBPF program of a device policy.
//!
//! The kernel calls it at each open and mknod with the device and the set of accesses that are wanted
//! together. The program goes through the rules from the last to the first and keeps in a register which of
//! those no rule has spoken of yet: a rule that denies one of them ends it with 0, one that allows the last
//! of them with 1. So each single access is decided by the last rule that speaks of it.

use super::{Access, Kind, Policy, Rule};
use crate::sys::bpf::Instruction;

/// Registers: the result, the argument, and what is unpacked from it.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const UNDECIDED: u8 = 2;
const KIND: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

// Opcodes, as linux/bpf.h composes them: class | operation | source.
const LOAD_WORD: u8 = 0x61; // LDX | MEM | W
const MOVE: u8 = 0xbc; // ALU | MOV | X
const AND: u8 = 0x54; // ALU | AND | K
const SHIFT_RIGHT: u8 = 0x74; // ALU | RSH | K
const SET: u8 = 0xb7; // ALU64 | MOV | K
const JUMP_IF_NOT_EQUAL: u8 = 0x56; // JMP32 | JNE | K
const JUMP_IF_COMMON: u8 = 0x46; // JMP32 | JSET | K
const JUMP: u8 = 0x05; // JMP | JA
const EXIT: u8 = 0x95;

/// The program for `policy`.
pub(super) fn compile(policy: &Policy) -> Vec<Instruction> {
    let mut program = vec![
        Instruction::new(LOAD_WORD, UNDECIDED, CONTEXT, 0, 0),
        Instruction::new(MOVE, KIND, UNDECIDED, 0, 0),
        Instruction::new(AND, KIND, 0, 0, 0xffff),
        Instruction::new(SHIFT_RIGHT, UNDECIDED, 0, 0, 16),
        Instruction::new(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        Instruction::new(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in policy.rules.iter().rev() {
        program.extend(on_match(rule, &decide(rule)));
    }
    program.extend(answer(policy.allow_others));
    program
}

/// `then`, skipped for other devices.
fn on_match(rule: &Rule, then: &[Instruction]) -> Vec<Instruction> {
    let kind = match rule.devices.kind {
        Kind::Block => 1,
        Kind::Char => 2,
    };
    let numbers = [(MAJOR, rule.devices.major), (MINOR, rule.devices.minor)];
    let tests: Vec<(u8, i32)> = [(KIND, kind)]
        .into_iter()
        .chain(numbers.into_iter().filter_map(|(register, number)| Some((register, number?.cast_signed()))))
        .collect();
    let mut program = Vec::with_capacity(tests.len() + then.len());
    for (done, (register, value)) in tests.iter().enumerate() {
        // At most 2 tests and 4 instructions are skipped.
        let skipped = (tests.len() - 1 - done + then.len()) as i16;
        program.push(Instruction::new(JUMP_IF_NOT_EQUAL, *register, 0, skipped, *value));
    }
    program.extend(then);
    program
}

/// What a rule says of the accesses that are undecided.
fn decide(rule: &Rule) -> Vec<Instruction> {
    let access = i32::from(rule.access.0);
    if rule.allow {
        let others = i32::from(Access::ALL.without(rule.access).0);
        let mut program = vec![
            Instruction::new(AND, UNDECIDED, 0, 0, others),
            Instruction::new(JUMP_IF_NOT_EQUAL, UNDECIDED, 0, 2, 0),
        ];
        program.extend(answer(true));
        program
    } else {
        // Jump over a jump: there is no "jump if no bit is common".
        let mut program = vec![
            Instruction::new(JUMP_IF_COMMON, UNDECIDED, 0, 1, access),
            Instruction::new(JUMP, 0, 0, 2, 0),
        ];
        program.extend(answer(false));
        program
    }
}

fn answer(allow: bool) -> [Instruction; 2] {
    [Instruction::new(SET, RESULT, 0, 0, i32::from(allow)), Instruction::new(EXIT, 0, 0, 0, 0)]
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Devices, tests::policy},
        *,
    };
    use crate::sys::bpf;

    /// Runs a program as the kernel does, for one device and the accesses wanted together.
    fn run(program: &[Instruction], (kind, major, minor): (u32, u32, u32), access: u8) -> bool {
        let context = [u32::from(access) << 16 | kind, major, minor];
        let mut registers = [0_u32; 11];
        let mut at = 0;
        loop {
            let (code, to, from, offset, value) = program[at].parts();
            let (to, from, skip) = (usize::from(to), usize::from(from), offset as usize);
            at += 1;
            match code {
                LOAD_WORD => registers[to] = context[skip / 4],
                MOVE => registers[to] = registers[from],
                AND => registers[to] &= value as u32,
                SHIFT_RIGHT => registers[to] >>= value,
                SET => registers[to] = value as u32,
                JUMP_IF_NOT_EQUAL if registers[to] != value as u32 => at += skip,
                JUMP_IF_COMMON if registers[to] & value as u32 != 0 => at += skip,
                JUMP_IF_NOT_EQUAL | JUMP_IF_COMMON => {}
                JUMP => at += skip,
                EXIT => return registers[usize::from(RESULT)] != 0,
                _ => panic!("opcode {code:#x}"),
            }
        }
    }

    /// What the policy means: each access by itself, by the last rule that speaks of it.
    fn allows(policy: &Policy, device: Devices, access: u8) -> bool {
        [1, 2, 4].into_iter().filter(|bit| access & bit != 0).all(|bit| {
            let last = policy
                .rules
                .iter()
                .rev()
                .find(|rule| rule.devices.covers(device) && rule.access.0 & bit != 0);
            last.map_or(policy.allow_others, |rule| rule.allow)
        })
    }

    fn check(policy: &Policy) {
        let program = compile(policy);
        for (number, kind) in [(1, Kind::Block), (2, Kind::Char)] {
            for (major, minor) in (0..4).flat_map(|major| (0..4).map(move |minor| (major, minor))) {
                for access in 1..8 {
                    let device = Devices { kind, major: Some(major), minor: Some(minor) };
                    let expected = allows(policy, device, access);
                    assert_eq!(
                        run(&program, (number, major, minor), access),
                        expected,
                        "{policy:?} {device} {access}"
                    );
                }
            }
        }
        // The kernel's verifier has to agree that it always ends and never reads what is not there.
        bpf::load_device_program(&program).unwrap();
    }

    #[test]
    fn programs_do_what_the_policy_means() {
        check(&policy("[]").unwrap());
        check(&policy(r#"[{"allow": true}]"#).unwrap());
        // Any numbers do; these are a linear congruential generator's.
        let mut state = 1_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for _ in 0..200 {
            let rules = (0..below(12)).map(|_| {
                let mut number = || Some(below(5) as u32).filter(|number| *number < 4);
                let devices = Devices { kind: Kind::Char, major: number(), minor: number() };
                let kind = if below(2) == 0 { Kind::Block } else { Kind::Char };
                let access = Access(1 + below(7) as u8);
                Rule { allow: below(2) == 0, devices: Devices { kind, ..devices }, access }
            });
            let rules = rules.collect();
            check(&Policy { allow_others: below(2) == 0, rules });
        }
    }

    #[test]
    fn numbers_beyond_31_bits() {
        let policy =
            policy(r#"[{"allow": true, "type": "c", "major": 4294967295, "minor": 7, "access": "r"}]"#);
        let program = compile(&policy.unwrap());
        assert!(run(&program, (2, u32::MAX, 7), Access::READ));
        assert!(!run(&program, (2, u32::MAX, 8), Access::READ));
        assert!(!run(&program, (2, u32::MAX, 7), Access::READ | Access::WRITE));
    }
}
