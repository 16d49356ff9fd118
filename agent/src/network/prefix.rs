//! An address and how many of its bits are the network's.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use super::Error;

/// `address/length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// Any address of the network, or an interface's own.
    pub address: IpAddr,
    /// At most 32 or 128.
    pub length: u8,
}

impl Prefix {
    /// Fails where `length` is more than the address has bits.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, Error> {
        if length > width(address) {
            return Err(Error::Invalid(format!("{address} has no prefix of {length} bits")));
        }
        Ok(Self { address, length })
    }

    /// Every address of a family.
    pub fn all(ipv6: bool) -> Self {
        let address = if ipv6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
        Self { address, length: 0 }
    }

    /// The last address of an IPv4 network that has room for one.
    pub(super) fn broadcast(self) -> Option<Ipv4Addr> {
        match (self.address, self.length) {
            (IpAddr::V4(address), length @ ..=30) => {
                Some(Ipv4Addr::from_bits(address.to_bits() | (u32::MAX >> length.min(31))))
            }
            _ => None,
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = Error;

    /// `address/length`; an address alone is a network of one.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Invalid(format!("{text:?} is not an address or address/prefix"));
        let (address, length) =
            text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let length = length.map_or(Ok(width(address)), str::parse).map_err(|_| wrong())?;
        Self::new(address, length)
    }
}
