//! `PCIDEVICE_*` variables, in which a device plugin told the container the host's PCI addresses.

use super::PciAddresses;

const PREFIX: &str = "PCIDEVICE_";
const ADDRESS: usize = "0000:00:00.0".len();

/// Puts the guest's addresses in the place of the host's. One the guest does not have stays as it is.
pub fn rewrite(environment: &mut [String], addresses: &PciAddresses) {
    if addresses.is_empty() {
        return;
    }
    for variable in environment.iter_mut().filter(|variable| variable.starts_with(PREFIX)) {
        if let Some((name, value)) = variable.split_once('=') {
            *variable = format!("{name}={}", translate(value, addresses));
        }
    }
}

/// Plain lists and the JSON of `*_INFO` alike: whatever reads like an address is looked up, in one pass, so that
/// an address of the guest is never taken for one of the host.
fn translate(value: &str, addresses: &PciAddresses) -> String {
    let mut text = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(first) = rest.chars().next() {
        let found = rest.get(..ADDRESS).and_then(|word| addresses.get(word));
        let taken = match found {
            Some(guest) => {
                text.push_str(guest);
                ADDRESS
            }
            None => {
                text.push(first);
                first.len_utf8()
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_swapped_where_they_are() {
        let addresses = PciAddresses::from([
            ("0000:65:00.0".to_owned(), "0000:01:00.0".to_owned()),
            ("0000:01:00.0".to_owned(), "0000:02:00.0".to_owned()),
        ]);
        let mut environment = [
            "PCIDEVICE_INTEL=0000:65:00.0,0000:01:00.0,0000:99:00.0",
            r#"PCIDEVICE_INTEL_INFO={"0000:65:00.0":{"generic":{"deviceID":"0000:65:00.0"}}}"#,
            "OTHER=0000:65:00.0",
            "PCIDEVICE_ODD",
            "PCIDEVICE_EMPTY=",
            "PCIDEVICE_TEXT=größe 0000:65:00.0",
        ]
        .map(str::to_owned);
        rewrite(&mut environment, &addresses);
        assert_eq!(
            environment,
            [
                "PCIDEVICE_INTEL=0000:01:00.0,0000:02:00.0,0000:99:00.0",
                r#"PCIDEVICE_INTEL_INFO={"0000:01:00.0":{"generic":{"deviceID":"0000:01:00.0"}}}"#,
                "OTHER=0000:65:00.0",
                "PCIDEVICE_ODD",
                "PCIDEVICE_EMPTY=",
                "PCIDEVICE_TEXT=größe 0000:01:00.0",
            ]
        );
    }
}
