//! CPUs that were plugged in and have to be put to use.

use std::{fs, path::Path};

use super::{Hotplug, Look, Result, Roots, at, names};

impl Hotplug {
    /// Brings CPUs online until `wanted` are, as they come.
    pub async fn online_cpus(&self, wanted: usize) -> Result<()> {
        self.wait(&format!("a total of {wanted} CPUs"), |roots| look(roots, wanted)).await
    }
}

fn look(roots: &Roots, wanted: usize) -> Result<Look<()>> {
    let cpus = roots.sys.join("devices/system/cpu");
    let mut online = online(&cpus)?;
    for cpu in names(&cpus).into_iter().filter(|name| number(name).is_some()) {
        if online >= wanted {
            return Ok(Look::Found(()));
        }
        let switch = cpus.join(cpu).join("online");
        // The boot CPU has no switch on some machines, and is online.
        if fs::read_to_string(&switch).is_ok_and(|state| state.trim() == "0") {
            fs::write(&switch, "1").map_err(at("write", &switch))?;
            online += 1;
        }
    }
    Ok(match online >= wanted {
        true => Look::Found(()),
        false => Look::NotYet(format!("{online} are online, and no other is present")),
    })
}

fn online(cpus: &Path) -> Result<usize> {
    let file = cpus.join("online");
    let list = fs::read_to_string(&file).map_err(at("read", &file))?;
    Ok(count(&list))
}

/// How many numbers a list such as `0-2,5` has.
fn count(list: &str) -> usize {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').filter_map(range).fold(0, usize::saturating_add)
}

fn number(name: &str) -> Option<u32> {
    name.strip_prefix("cpu")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        for (list, expected) in
            [("0\n", 1), ("0-2,5\n", 4), ("", 0), ("3-1", 0), ("0-18446744073709551615", 0)]
        {
            assert_eq!(count(list), expected, "{list:?}");
        }
    }

    #[test]
    fn only_as_many_as_asked_for_are_switched_on() {
        let sys = std::env::temp_dir().join(format!("berth-cpu-{}", std::process::id()));
        let cpus = sys.join("devices/system/cpu");
        for cpu in ["cpu0", "cpu1", "cpu2", "cpufreq"] {
            fs::create_dir_all(cpus.join(cpu)).unwrap();
        }
        fs::write(cpus.join("online"), "0\n").unwrap();
        fs::write(cpus.join("cpu1/online"), "0\n").unwrap();
        fs::write(cpus.join("cpu2/online"), "0\n").unwrap();
        let roots = Roots { sys: sys.clone(), dev: "/dev".into() };
        let state = |cpu: &str| fs::read_to_string(cpus.join(cpu).join("online")).unwrap();
        assert_eq!(look(&roots, 1).unwrap(), Look::Found(()));
        assert_eq!(state("cpu1"), "0\n");
        assert_eq!(look(&roots, 2).unwrap(), Look::Found(()));
        assert_eq!((state("cpu1").as_str(), state("cpu2").as_str()), ("1", "0\n"));
        let short = look(&roots, 9).unwrap();
        assert_eq!(short, Look::NotYet("2 are online, and no other is present".into()));
        fs::remove_dir_all(sys).unwrap();
    }
}
