//! Lists of numbers as `cpuset` writes them: `0-3,7`.

use super::CompileError;

/// More than any kernel is built for (NR_CPUS of 8192, 1024 nodes), and small enough to be a mask.
const MAX: u32 = 8192;

/// The list as a mask: bit N of the words for number N. An empty text is an empty mask.
pub(super) fn mask(field: &'static str, list: &str) -> Result<Vec<u64>, CompileError> {
    let problem = || CompileError::invalid(field, list, "is not a list of numbers below 8192, like 0-3,7");
    let mut mask = Vec::new();
    for range in list.split(',').filter(|_| !list.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first).ok_or_else(problem)?, number(last).ok_or_else(problem)?);
        if first > last {
            return Err(problem());
        }
        let words = last as usize / 64 + 1;
        mask.resize(words.max(mask.len()), 0);
        for bit in first..=last {
            if let Some(word) = mask.get_mut(bit as usize / 64) {
                *word |= 1_u64 << (bit % 64);
            }
        }
    }
    Ok(mask)
}

fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number < MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_bits() {
        assert_eq!(mask("x", "0-3,7").unwrap(), [0b1000_1111]);
        assert_eq!(mask("x", "64,1").unwrap(), [2, 1]);
        assert_eq!(mask("x", "8191").unwrap().len(), 128);
        assert!(mask("x", "").unwrap().is_empty());
        for list in ["a", "1-", "-1", "3-1", "1,,2", "8192", "+1", " 1", "4294967296", ","] {
            assert!(mask("x", list).is_err(), "{list}");
        }
    }
}
