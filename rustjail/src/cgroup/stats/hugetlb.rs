//! Huge pages.

use std::collections::HashMap;

use super::{
    super::{Cgroup, CgroupError, Controller, parse},
    number, text,
};

/// Huge pages of one size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HugetlbStats {
    /// In use.
    pub usage: u64,
    /// The most that was in use; v2 does not say.
    pub max_usage: u64,
    /// How often the limit was hit, by a use or by a promise.
    pub failures: u64,
    /// The limit.
    pub limit: u64,
    /// Promised to mappings, in use or not.
    pub reserved: u64,
}

pub(super) fn read(group: &Cgroup) -> Result<HashMap<String, HugetlbStats>, CgroupError> {
    let mut sizes = HashMap::new();
    let Some(controller) = group.find("hugetlb") else {
        return Ok(sizes);
    };
    let dir = controller.dir();
    // The sizes are the machine's; only the names of the files tell them.
    let end = match controller {
        Controller::V1(_) => ".usage_in_bytes",
        Controller::V2(_) => ".current",
    };
    for file in dir.files()? {
        let size = file.to_str().and_then(|file| file.strip_prefix("hugetlb.")?.strip_suffix(end));
        let Some(size) = size.filter(|size| !size.contains('.')) else {
            continue;
        };
        let of = |what: &str| format!("hugetlb.{size}.{what}");
        let stats = match controller {
            Controller::V1(_) => HugetlbStats {
                usage: number(dir, &of("usage_in_bytes"))?,
                max_usage: number(dir, &of("max_usage_in_bytes"))?,
                failures: number(dir, &of("failcnt"))?.saturating_add(number(dir, &of("rsvd.failcnt"))?),
                limit: number(dir, &of("limit_in_bytes"))?,
                reserved: number(dir, &of("rsvd.usage_in_bytes"))?,
            },
            Controller::V2(_) => HugetlbStats {
                usage: number(dir, &of("current"))?,
                max_usage: 0,
                failures: parse::keyed(&text(dir, &of("events"))?, "max").unwrap_or(0),
                limit: number(dir, &of("max"))?,
                reserved: number(dir, &of("rsvd.current"))?,
            },
        };
        sizes.insert(size.to_owned(), stats);
    }
    Ok(sizes)
}
