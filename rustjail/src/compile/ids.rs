//! Id maps: which users and groups of one side are which of the other.

use oci_spec::runtime::LinuxIdMapping;

use super::CompileError;
use crate::plan::IdMap;

/// `UID_GID_MAP_MAX_EXTENTS` of the kernel.
const MAX_RANGES: usize = 340;

/// The ranges of `list`, in its order.
pub(super) fn map(
    field: &'static str,
    list: Option<&Vec<LinuxIdMapping>>,
) -> Result<Vec<IdMap>, CompileError> {
    let range =
        |id: &LinuxIdMapping| IdMap { inside: id.container_id(), outside: id.host_id(), count: id.size() };
    check(field, list.into_iter().flatten().map(range).collect())
}

/// `ranges`, if the kernel would take them.
pub(super) fn check(field: &'static str, ranges: Vec<IdMap>) -> Result<Vec<IdMap>, CompileError> {
    let problem = |range: &IdMap, problem| {
        let shown = format!("{}:{}:{}", range.inside, range.outside, range.count);
        Err(CompileError::invalid(field, shown, problem))
    };
    for (index, range) in ranges.iter().enumerate() {
        if index >= MAX_RANGES {
            return problem(range, "is one range more than the kernel takes (340)");
        }
        if range.count == 0 {
            return problem(range, "maps no id");
        }
        // The last id is the kernel's word for none.
        let ends = [range.inside.checked_add(range.count), range.outside.checked_add(range.count)];
        if ends.contains(&None) {
            return problem(range, "goes beyond the last id, 4294967294");
        }
        let before = ranges.get(..index).unwrap_or_default();
        if before.iter().any(|other| overlap(other, range)) {
            return problem(range, "overlaps a range before it");
        }
    }
    Ok(ranges)
}

/// The kernel wants both sides unambiguous.
fn overlap(one: &IdMap, other: &IdMap) -> bool {
    let meet = |a: u32, b: u32| {
        let (a, b) = (u64::from(a), u64::from(b));
        a < b + u64::from(other.count) && b < a + u64::from(one.count)
    };
    meet(one.inside, other.inside) || meet(one.outside, other.outside)
}

/// Whether `id` is somebody inside.
pub(super) fn contains(map: &[IdMap], id: u32) -> bool {
    map.iter().any(|range| id.checked_sub(range.inside).is_some_and(|offset| offset < range.count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map_of(ranges: &[(u32, u32, u32)]) -> Result<Vec<IdMap>, CompileError> {
        let list = ranges.iter().map(|(inside, outside, count)| {
            serde_json::from_value(json!({"containerID": inside, "hostID": outside, "size": count})).unwrap()
        });
        map("x", Some(&list.collect()))
    }

    #[test]
    fn ranges_end_where_ids_do() {
        let max = u32::MAX;
        assert!(map_of(&[(0, 0, max)]).is_ok());
        assert!(map_of(&[(max - 1, 0, 1)]).is_ok());
        assert!(map_of(&[(max, 0, 1)]).is_err());
        assert!(map_of(&[(0, max - 4, 5)]).is_err());
        assert!(map_of(&[(0, max - 5, 5)]).is_ok());
        assert!(map_of(&[(0, 1, 0)]).is_err());
    }

    #[test]
    fn ranges_may_touch_but_not_overlap() {
        assert!(map_of(&[(0, 1000, 10), (10, 1010, 10)]).is_ok());
        assert!(map_of(&[(0, 1000, 11), (10, 2000, 10)]).is_err());
        assert!(map_of(&[(0, 1000, 10), (10, 1009, 10)]).is_err());
        let many: Vec<_> = (0..341).map(|number| (number, number, 1)).collect();
        assert!(map_of(&many[..340]).is_ok());
        assert!(map_of(&many).is_err());
    }

    #[test]
    fn an_id_is_somebody_or_nobody() {
        let map = map_of(&[(5, 100, 2)]).unwrap();
        assert_eq!([4, 5, 6, 7].map(|id| contains(&map, id)), [false, true, true, false]);
    }
}
