//! An assembler for classic BPF that works from the last instruction to the first.
//!
//! A classic BPF jump only goes forward, so written backwards every target is already there and its
//! distance is known: no labels to resolve and no second pass. A conditional jump reaches 255 instructions;
//! when a target has moved further away, a copy of it (for a return) or an unconditional jump to it is put
//! in reach, and found again by later jumps. Equal returns are shared.

use super::SeccompError;

/// The longest program the kernel takes (BPF_MAXINSNS).
const MAX_LEN: usize = 4096;
/// What a conditional jump is sure to reach after both its targets may have been brought nearer.
const REACH: usize = 253;

const LD_WORD_ABS: u16 = 0x20;
const AND_K: u16 = 0x54;
const JA: u16 = 0x05;
const RET_K: u16 = 0x06;

/// The comparisons that classic BPF has, by the conditional jump on a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(super) enum Test {
    Equal = 0x15,
    Greater = 0x25,
    GreaterOrEqual = 0x35,
}

/// An instruction, by its distance from the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Label(usize);

#[derive(Debug, Clone, Copy)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// A program in the making.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// The last instruction comes first.
    reversed: Vec<Instruction>,
    /// The few values it can return.
    returns: Vec<(u32, Label)>,
    /// The nearest stand-in of each instruction: itself until it got out of reach.
    nearest: Vec<Label>,
}

impl Program {
    /// Ends with `value`.
    pub(super) fn ret(&mut self, value: u32) -> Label {
        if self.reversed.len() > MAX_LEN {
            return Label(0);
        }
        if let Some((_, label)) = self.returns.iter().find(|(of, _)| *of == value) {
            return *label;
        }
        let label = self.push(Instruction { code: RET_K, jt: 0, jf: 0, k: value });
        self.returns.push((value, label));
        label
    }

    /// Loads the word of `seccomp_data` at `offset`, then goes on at `next`.
    pub(super) fn load(&mut self, offset: u32, next: Label) -> Label {
        self.straight(LD_WORD_ABS, offset, next)
    }

    /// Masks the loaded word, then goes on at `next`.
    pub(super) fn and(&mut self, mask: u32, next: Label) -> Label {
        self.straight(AND_K, mask, next)
    }

    /// Goes on at `yes` or `no`.
    pub(super) fn branch(&mut self, test: Test, k: u32, yes: Label, no: Label) -> Label {
        if yes == no {
            return yes;
        }
        let (yes, no) = (self.bring_near(yes), self.bring_near(no));
        let (jt, jf) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.push(Instruction { code: test as u16, jt, jf, k })
    }

    /// The program, which starts at the instruction written last.
    pub(super) fn finish(self) -> Result<Vec<[u8; 8]>, SeccompError> {
        if self.reversed.len() > MAX_LEN {
            return Err(SeccompError::TooLong { limit: MAX_LEN });
        }
        Ok(self.reversed.iter().rev().map(|instruction| instruction.encode()).collect())
    }

    fn straight(&mut self, code: u16, k: u32, next: Label) -> Label {
        if self.distance(next) > 0 {
            self.jump(next);
        }
        self.push(Instruction { code, jt: 0, jf: 0, k })
    }

    fn jump(&mut self, to: Label) -> Label {
        let k = self.distance(to) as u32;
        self.push(Instruction { code: JA, jt: 0, jf: 0, k })
    }

    fn bring_near(&mut self, target: Label) -> Label {
        let nearest = self.nearest.get(target.0).copied();
        if let Some(label) = nearest.filter(|label| self.reaches(*label)) {
            return label;
        }
        let label = match self.reversed.get(target.0).copied() {
            Some(last) if last.code == RET_K => self.push(last),
            _ => self.jump(target),
        };
        if let Some(nearest) = self.nearest.get_mut(target.0) {
            *nearest = label;
        }
        label
    }

    /// Beyond the limit nothing is added: the program is refused, and must not cost more than one that is not.
    fn push(&mut self, instruction: Instruction) -> Label {
        if self.reversed.len() <= MAX_LEN {
            self.nearest.push(Label(self.reversed.len()));
            self.reversed.push(instruction);
        }
        Label(self.reversed.len() - 1)
    }

    /// How many instructions the next one would have to skip to get to `label`.
    fn distance(&self, label: Label) -> usize {
        self.reversed.len() - 1 - label.0
    }

    fn reaches(&self, label: Label) -> bool {
        self.distance(label) <= REACH
    }
}

impl Instruction {
    /// As `struct sock_filter`.
    fn encode(self) -> [u8; 8] {
        let [c0, c1] = self.code.to_ne_bytes();
        let [k0, k1, k2, k3] = self.k.to_ne_bytes();
        [c0, c1, self.jt, self.jf, k0, k1, k2, k3]
    }
}
