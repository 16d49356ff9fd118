//! What happens to each system call of one ABI: rules by name become verdicts by number.
//!
//! Several rules may name one call. The spec gives them no order, so they are ranked as the kernel ranks the
//! answers of several filters: the strictest action whose conditions hold wins, and the earlier rule among
//! equals. So a denial is never lost to a broader permission, however the profile is sorted. A call's
//! verdict is its rules in that order, up to the first one without conditions or else the default.

use super::{
    arch::Abi,
    profile::{Condition, Profile, Rule, precedence},
    program::Test,
    table,
};

/// The same verdict from `first` to `last`.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) verdict: Verdict,
}

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    Return(u32),
    /// The first clause whose conditions hold decides, else the last value.
    Check(Vec<Clause>, u32),
}

/// Conditions that must all hold, and the action then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Clause {
    pub(super) conditions: Vec<Condition>,
    pub(super) action: u32,
}

/// A rule for a number, in one word that orders as verdicts need them: sorting some hundreds of these is a good
/// part of what compiling a profile takes.
///
/// ```text
///  63        32 31         8 7        0
/// | the number | the rule's | selector |
/// |            | rank       | + 1, or 0|
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Applied(u64);

/// The verdict of every call the profile names that `abi` has, in order and each number once.
pub(super) fn by_number(profile: &Profile<'_>, abi: Abi) -> Vec<Span> {
    let mut applied = applied(profile, abi);
    applied.sort_unstable();
    let mut spans = Vec::with_capacity(applied.len() + 2);
    for rules in applied.chunk_by(|one, other| one.number() == other.number()) {
        if let [first, ..] = rules {
            let number = first.number();
            spans.push(Span { first: number, last: number, verdict: verdict(rules, profile, abi) });
        }
    }
    spans
}

fn applied(profile: &Profile<'_>, abi: Abi) -> Vec<Applied> {
    let mut applied = Vec::with_capacity(profile.rules.iter().map(|rule| rule.calls.len()).sum());
    for (rank, rule) in profile.rules.iter().enumerate() {
        for row in &rule.calls {
            let number = table::number(row, abi);
            if let Some(number) = number {
                applied.push(Applied::new(number, rank, None));
            }
            // The arguments a condition speaks of are in memory here, out of a filter's sight. Taking the
            // condition for met is right for what forbids, and would be a hole for what permits.
            let counts = rule.conditions.is_empty() || precedence(rule.action) < precedence(profile.default);
            if let Some((number, code)) = abi.multiplexed(row.0, number).filter(|_| counts) {
                applied.push(Applied::new(number, rank, Some(code)));
            }
        }
    }
    applied
}

fn verdict(rules: &[Applied], profile: &Profile<'_>, abi: Abi) -> Verdict {
    let mut clauses: Vec<Clause> = Vec::new();
    let mut last = profile.default;
    for (applied, rule) in
        rules.iter().filter_map(|applied| Some((applied, profile.rules.get(applied.rank())?)))
    {
        if applied.is_unconditional(rule) {
            last = rule.action;
            break;
        }
        let conditions = applied.conditions(rule, abi);
        clauses.push(Clause { conditions, action: rule.action });
    }
    while clauses.pop_if(|clause| clause.action == last).is_some() {}
    if clauses.is_empty() { Verdict::Return(last) } else { Verdict::Check(clauses, last) }
}

impl Applied {
    /// `rank` is the rule's place in the profile, which takes far fewer than 2^24; with a `selector` it is
    /// only for this sub-function of a multiplexed call.
    fn new(number: u32, rank: usize, selector: Option<u8>) -> Self {
        Self(u64::from(number) << 32 | (rank as u64) << 8 | selector.map_or(0, |code| u64::from(code) + 1))
    }

    fn number(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn rank(self) -> usize {
        (self.0 as u32 >> 8) as usize
    }

    /// Nearly all are.
    fn is_unconditional(self, rule: &Rule) -> bool {
        self.0 as u8 == 0 && rule.conditions.is_empty()
    }

    fn conditions(self, rule: &Rule, abi: Abi) -> Vec<Condition> {
        match (self.0 as u8).checked_sub(1) {
            Some(code) => vec![Condition {
                argument: 0,
                mask: u64::from(u32::MAX),
                test: Test::Equal,
                value: u64::from(code),
                negated: false,
            }],
            None => rule.conditions.iter().map(|condition| condition.on(abi)).collect(),
        }
    }
}

impl Condition {
    /// As `abi` sees it: on a 32-bit one both sides are 32-bit values, so a profile's -1 stays -1.
    fn on(&self, abi: Abi) -> Self {
        let width = if abi.is_32bit() { u64::from(u32::MAX) } else { u64::MAX };
        Self { mask: self.mask & width, value: self.value & width, ..*self }
    }
}
