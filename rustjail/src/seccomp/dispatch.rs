//! From verdicts to a program: architecture first, then a search for the number, arguments last.
//!
//! The kernel walks a new filter once for every call number to learn which are always allowed, so the depth
//! of a path and the number of instructions decide how long loading takes. Numbers with the same verdict
//! are joined into ranges, ranges are found by halving, and a few odd numbers inside a range are picked out
//! by equality rather than split it. Argument checks lie behind the search, out of its way, and equal ones
//! are shared.

use std::collections::HashMap;

use super::{
    SeccompError,
    arch::{Abi, X32_BIT},
    checks,
    profile::{Profile, RET_ERRNO, RET_KILL_THREAD, precedence},
    program::{Label, Program, Test},
    verdict::{Span, Verdict, by_number},
};

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const ENOSYS: u32 = 38;
/// More odd numbers in one range than this are found faster by halving.
const MAX_ODD: usize = 3;

/// The same verdict for every number from `first` to the next range.
#[derive(Debug)]
struct Range {
    first: u32,
    verdict: Verdict,
}

/// A part of the number space that is not halved further.
#[derive(Debug)]
struct Leaf {
    first: u32,
    verdict: Label,
    odd: Vec<(u32, Label)>,
}

/// The whole program for `abis`, the first of which is tried first.
pub(super) fn program(profile: &Profile<'_>, abis: &[Abi]) -> Result<Vec<[u8; 8]>, SeccompError> {
    let mut program = Program::default();
    let mut entry = program.ret(RET_KILL_THREAD);
    // Written backwards, so the first architecture comes last. x32 is a part of x86_64.
    for abi in abis.iter().rev().filter(|abi| **abi != Abi::X32) {
        let ranges = ranges(profile, *abi, abis.contains(&Abi::X32));
        let leaves = leaves(&mut program, &ranges);
        let found = search(&mut program, &leaves);
        let body = program.load(OFFSET_NUMBER, found);
        entry = program.branch(Test::Equal, abi.audit(), body, entry);
    }
    program.load(OFFSET_ARCH, entry);
    program.finish()
}

/// The number space of `abi`'s audit architecture, without gaps and with equal neighbours joined.
fn ranges(profile: &Profile<'_>, abi: Abi, with_x32: bool) -> Vec<Range> {
    let mut spans = spans(profile, abi);
    if abi == Abi::X86_64 && with_x32 {
        spans.extend(self::spans(profile, Abi::X32));
    } else if abi == Abi::X86_64 {
        // -1 stays with the default: it is not an x32 call but one that a tracer has cancelled.
        spans.push(Span { first: X32_BIT, last: u32::MAX - 1, verdict: Verdict::Return(RET_KILL_THREAD) });
    }
    let mut ranges: Vec<Range> = Vec::with_capacity(spans.len());
    let mut append = |first, verdict| {
        if ranges.last().is_none_or(|range| range.verdict != verdict) {
            ranges.push(Range { first, verdict });
        }
    };
    let mut next = Some(0);
    for Span { first, last, verdict } in spans {
        if let Some(gap) = next.filter(|next| *next < first) {
            append(gap, Verdict::Return(profile.default));
        }
        append(first, verdict);
        next = last.checked_add(1);
    }
    if let Some(rest) = next {
        append(rest, Verdict::Return(profile.default));
    }
    ranges
}

/// What the profile says of `abi`'s numbers, in order.
///
/// The calls it cannot have known, those after the newest one it names, get ENOSYS: a C library tries such a
/// call first and falls back on ENOSYS, but takes EPERM for an answer, so a default of another errno would
/// break programs newer than the profile.
fn spans(profile: &Profile<'_>, abi: Abi) -> Vec<Span> {
    let mut spans = by_number(profile, abi);
    let (start, last) = abi.new_calls();
    let known = spans.partition_point(|span| span.first <= last);
    let newest = known.checked_sub(1).and_then(|at| spans.get(at)).map(|span| span.last);
    if let Some(newest) = newest.filter(|_| precedence(profile.default) == precedence(RET_ERRNO)) {
        let first = start.max(newest + 1);
        spans.insert(known, Span { first, last, verdict: Verdict::Return(RET_ERRNO | ENOSYS) });
    }
    spans
}

/// Writes the verdicts and gathers the ranges: `A b A` becomes `A` with the odd number `b`.
fn leaves<'a>(program: &mut Program, ranges: &'a [Range]) -> Vec<Leaf> {
    let mut written = HashMap::new();
    let mut label = |range: &'a Range| match &range.verdict {
        Verdict::Return(action) => program.ret(*action),
        Verdict::Check(clauses, last) => {
            *written.entry(&range.verdict).or_insert_with(|| checks::write(program, clauses, *last))
        }
    };
    let mut leaves = Vec::new();
    let mut rest = ranges;
    while let [base, after @ ..] = rest {
        let mut leaf = Leaf { first: base.first, verdict: label(base), odd: Vec::new() };
        rest = after;
        while let [odd, again, after @ ..] = rest
            && leaf.odd.len() < MAX_ODD
            && again.verdict == base.verdict
            && odd.first.checked_add(1) == Some(again.first)
        {
            leaf.odd.push((odd.first, label(odd)));
            rest = after;
        }
        leaves.push(leaf);
    }
    leaves
}

fn search(program: &mut Program, leaves: &[Leaf]) -> Label {
    let (lower, upper) = leaves.split_at(leaves.len() / 2);
    match (lower, upper) {
        ([], [leaf]) => leaf.odd.iter().rev().fold(leaf.verdict, |otherwise, (number, verdict)| {
            program.branch(Test::Equal, *number, *verdict, otherwise)
        }),
        (_, [first, ..]) => {
            let (upper, split) = (search(program, upper), first.first);
            let lower = search(program, lower);
            program.branch(Test::GreaterOrEqual, split, upper, lower)
        }
        // There is at least the range that starts at 0.
        (_, []) => program.ret(RET_KILL_THREAD),
    }
}
