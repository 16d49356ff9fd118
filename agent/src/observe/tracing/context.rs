//! The caller's trace context: W3C Trace Context, level 1, as it comes in a call's metadata.

/// The flag of a trace that is recorded.
pub(super) const SAMPLED: u8 = 1;
/// What the recommendation has a `tracestate` hold at most.
const STATE_MEMBERS: usize = 32;

/// The two headers as they lie in the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    traceparent: &'a str,
    tracestate: &'a str,
}

/// The span of the caller's that a call belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) flags: u8,
    pub(super) state: Option<Vec<(String, String)>>,
}

impl Parent {
    pub(super) fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl<'a> Headers<'a> {
    /// Takes one pair of a call's metadata; what is not trace context is nobody's business here.
    pub fn note(&mut self, key: &str, value: &'a str) {
        if key.eq_ignore_ascii_case("traceparent") {
            self.traceparent = value;
        } else if key.eq_ignore_ascii_case("tracestate") {
            self.tracestate = value;
        }
    }

    /// A malformed `traceparent` is none, and its `tracestate` then means nothing.
    pub(super) fn parent(&self) -> Option<Parent> {
        let mut parts = self.traceparent.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = u8::try_from(hex(version, 2)?).ok()?;
        // Later versions may say more; this one says nothing else.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace_id = hex(trace, 32).filter(|id| *id != 0)?;
        let span_id = hex(span, 16).and_then(|id| u64::try_from(id).ok()).filter(|id| *id != 0)?;
        let flags = u8::try_from(hex(flags, 2)?).ok()?;
        Some(Parent { trace_id, span_id, flags, state: state(self.tracestate) })
    }
}

/// Exactly `digits` digits, which the recommendation wants in lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// All members in order; a list with one that is malformed is dropped whole.
fn state(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let members: Option<Vec<_>> = members
        .map(|member| {
            let (key, value) = member.split_once('=')?;
            let sound = !key.is_empty() && key.len() <= 256 && value.len() <= 256 && !value.contains('=');
            sound.then(|| (key.to_owned(), value.to_owned()))
        })
        .collect();
    members.filter(|members| (1..=STATE_MEMBERS).contains(&members.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(traceparent: &str, tracestate: &str) -> Option<Parent> {
        let mut headers = Headers::default();
        headers.note("Traceparent", traceparent);
        headers.note("tracestate", tracestate);
        headers.note("baggage", "a=b");
        headers.parent()
    }

    #[test]
    fn a_parent_is_taken_with_its_state() {
        let found = parent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "rojo=1, congo=t61");
        let state = [("rojo", "1"), ("congo", "t61")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let expected = Parent {
            trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
            span_id: 0xb7ad_6b71_6920_3331,
            flags: 1,
            state: Some(state.to_vec()),
        };
        assert_eq!(found, Some(expected));
        let later = parent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more", "").unwrap();
        assert!(!later.sampled() && later.state.is_none());
    }

    #[test]
    fn what_is_malformed_is_no_parent() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(parent(text, "a=b"), None, "{text}");
        }
        let sound = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for text in ["a", "=b", "a=b=c", "a=1,b", &"a=1,".repeat(33)] {
            assert_eq!(parent(sound, text).unwrap().state, None, "{text}");
        }
    }
}
