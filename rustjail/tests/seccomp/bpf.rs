//! Classic BPF as the kernel checks and runs it for seccomp, as far as filters use it.

use rustjail::seccomp::Filter;

/// What a filter sees of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub number: u32,
    pub audit: u32,
    pub args: [u64; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        let arg = |at: u32| self.args[(at / 8) as usize];
        match offset {
            0 => self.number,
            4 => self.audit,
            16..64 if offset.is_multiple_of(8) => arg(offset - 16) as u32,
            16..64 if offset.is_multiple_of(4) => (arg(offset - 16) >> 32) as u32,
            _ => panic!("load of {offset}"),
        }
    }
}

/// What the program returns, and after how many instructions.
pub fn run(program: &[[u8; 8]], call: &Call) -> (u32, usize) {
    assert!((1..=4096).contains(&program.len()));
    let (mut accumulator, mut at) = (0u32, 0usize);
    for steps in 1.. {
        let [c0, c1, jt, jf, k0, k1, k2, k3] = program[at];
        let k = u32::from_ne_bytes([k0, k1, k2, k3]);
        let jump = |taken: bool| usize::from(if taken { jt } else { jf });
        at += 1;
        match u16::from_ne_bytes([c0, c1]) {
            0x06 => return (k, steps),
            0x05 => at += k as usize,
            0x15 => at += jump(accumulator == k),
            0x25 => at += jump(accumulator > k),
            0x35 => at += jump(accumulator >= k),
            0x45 => at += jump(accumulator & k != 0),
            0x54 => accumulator &= k,
            0x20 => accumulator = call.word(k),
            code => panic!("instruction {code:#x}"),
        }
    }
    unreachable!("the kernel lets no program run off its end")
}

/// What the filter answers to a call.
pub fn answer(filter: &Filter, call: &Call) -> u32 {
    run(&filter.program, call).0
}
