//! The code that looks at arguments.
//!
//! An argument is 64 bits wide and a word of classic BPF 32, so a comparison takes the upper half first and
//! the lower one only where the upper does not decide. An upper half that the mask hides is not loaded, and
//! clauses that compare one argument with several values load it once. `seccomp_data` is in the machine's
//! byte order; both machines we know are little-endian.

use super::{
    profile::Condition,
    program::{Label, Program, Test},
    verdict::Clause,
};

const OFFSET_ARGUMENTS: u32 = 16;

/// Writes what tries `clauses` and else returns `last`; the result is where to enter it.
pub(super) fn write(program: &mut Program, clauses: &[Clause], last: u32) -> Label {
    let groups: Vec<&[Clause]> = clauses.chunk_by(load_the_same).collect();
    let last = program.ret(last);
    groups.into_iter().rev().fold(last, |otherwise, group| write_group(program, group, otherwise))
}

/// Whether two clauses are nothing but equalities that differ only in the lower half of the value.
fn load_the_same(one: &Clause, other: &Clause) -> bool {
    let ([one], [other]) = (one.conditions.as_slice(), other.conditions.as_slice()) else {
        return false;
    };
    let is_equality = one.test == Test::Equal && !one.negated;
    is_equality
        && halves(one.value).0 == halves(other.value).0
        && Condition { value: one.value, ..*other } == *one
}

fn write_group(program: &mut Program, group: &[Clause], otherwise: Label) -> Label {
    if let [clause] = group {
        let holds = program.ret(clause.action);
        return clause.conditions.iter().rev().fold(holds, |holds, condition| {
            let (yes, no) = if condition.negated { (otherwise, holds) } else { (holds, otherwise) };
            write_test(program, condition, yes, no)
        });
    }
    let alternatives = group.iter().filter_map(|clause| Some((clause.conditions.first()?, clause.action)));
    let Some((first, _)) = alternatives.clone().next() else {
        return otherwise;
    };
    let any_of = |program: &mut Program| {
        alternatives.rev().fold(otherwise, |no, (condition, action)| {
            let yes = program.ret(action);
            program.branch(Test::Equal, halves(condition.value).1, yes, no)
        })
    };
    write_halves(program, first, any_of, |program, decided_below| {
        program.branch(Test::Equal, halves(first.value).0, decided_below, otherwise)
    })
}

fn write_test(program: &mut Program, condition: &Condition, yes: Label, no: Label) -> Label {
    let (upper, lower) = halves(condition.value);
    let on_lower = |program: &mut Program| program.branch(condition.test, lower, yes, no);
    write_halves(program, condition, on_lower, |program, decided_below| {
        let same = program.branch(Test::Equal, upper, decided_below, no);
        match condition.test {
            Test::Equal => same,
            Test::Greater | Test::GreaterOrEqual => program.branch(Test::Greater, upper, yes, same),
        }
    })
}

/// Writes the loads of both halves, each in front of the jumps that look at it.
fn write_halves(
    program: &mut Program,
    condition: &Condition,
    on_lower: impl FnOnce(&mut Program) -> Label,
    on_upper: impl FnOnce(&mut Program, Label) -> Label,
) -> Label {
    let offset = OFFSET_ARGUMENTS + 8 * condition.argument;
    let (upper_mask, lower_mask) = halves(condition.mask);
    let jumps = on_lower(program);
    let decided_below = write_word(program, offset, lower_mask, jumps);
    if upper_mask == 0 {
        return decided_below;
    }
    let jumps = on_upper(program, decided_below);
    write_word(program, offset + 4, upper_mask, jumps)
}

fn write_word(program: &mut Program, offset: u32, mask: u32, mut jumps: Label) -> Label {
    if mask != u32::MAX {
        jumps = program.and(mask, jumps);
    }
    program.load(offset, jumps)
}

fn halves(value: u64) -> (u32, u32) {
    ((value >> 32) as u32, value as u32)
}
