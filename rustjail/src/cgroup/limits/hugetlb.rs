//! Huge pages.

use oci_spec::runtime::LinuxHugepageLimit;

use super::{
    super::{Cgroup, CgroupError, Controller},
    Limit,
};

/// Limits the use and, where the kernel can (5.7), the reservation: with the latter a process that asks for
/// too much gets an error from mmap instead of SIGBUS at its first access.
pub(super) fn apply(group: &Cgroup, limits: &[LinuxHugepageLimit]) -> Result<(), CgroupError> {
    for limit in limits {
        let size = limit.page_size();
        if !is_page_size(size) {
            let reason = "it is a number followed by KB, MB or GB";
            return Err(CgroupError::invalid("hugepageLimits.pageSize", size, reason));
        }
        let (dir, used, reserved, value) = match group.controller("hugetlb")? {
            Controller::V1(dir) => {
                (dir, "limit_in_bytes", "rsvd.limit_in_bytes", Limit::v1 as fn(Limit) -> String)
            }
            Controller::V2(dir) => (dir, "max", "rsvd.max", Limit::v2 as fn(Limit) -> String),
        };
        // Here 0 is a limit like any other: none of these pages.
        let given = Limit::given("hugepageLimits.limit", Some(limit.limit()))?.unwrap_or(Limit::To(0));
        dir.write(&format!("hugetlb.{size}.{used}"), &value(given))?;
        match dir.write(&format!("hugetlb.{size}.{reserved}"), &value(given)) {
            Err(CgroupError::NoFile { .. }) => {}
            done => done?,
        }
    }
    Ok(())
}

fn is_page_size(size: &str) -> bool {
    let number = ["KB", "MB", "GB"].into_iter().find_map(|unit| size.strip_suffix(unit));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes() {
        assert!(["64KB", "2MB", "1GB"].into_iter().all(is_page_size));
        assert!(!["", "MB", "2mb", "../2MB", "2 MB", "2MB/../x", "-1MB"].into_iter().any(is_page_size));
    }
}
