//! The arguments of the commands about the guest's network and files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to copy, and to where.
#[derive(Debug, Args)]
pub struct Cp {
    /// A file, a symbolic link, or a directory with everything in it
    pub source: PathBuf,
    /// Its path in the guest; a relative one is taken below /run/kata-containers/shared/containers
    pub destination: String,
    /// The permissions of directories that have to be made
    #[arg(long, default_value = "755", value_name = "MODE", value_parser = octal)]
    pub dir_mode: u32,
}

/// Interfaces.
#[derive(Debug, Args)]
pub struct Interface {
    /// The name it is to have
    pub name: String,
    /// Find it by this MAC address; else by its name
    #[arg(long, default_value = "", value_name = "MAC")]
    pub mac: String,
    /// Wait for the device at this PCI path and take its interface
    #[arg(long, default_value = "", value_name = "PATH")]
    pub device_path: String,
    /// An address it is to have, beside which it has no others; may be repeated
    #[arg(long = "ip", value_name = "ADDRESS/PREFIX", value_parser = prefix)]
    pub addresses: Vec<(String, String)>,
    /// Its largest packet [default: as it is]
    #[arg(long, default_value_t = 0, value_name = "BYTES", hide_default_value = true)]
    pub mtu: u64,
    /// Switch ARP off
    #[arg(long)]
    pub no_arp: bool,
}

/// A route to be added.
#[derive(Debug, Args)]
pub struct Route {
    /// Where to: ADDRESS/PREFIX, or default
    pub destination: String,
    /// The gateway
    #[arg(long, default_value = "", value_name = "ADDRESS")]
    pub via: String,
    /// The interface
    #[arg(long, default_value = "", value_name = "NAME")]
    pub dev: String,
    /// The address to send from
    #[arg(long, default_value = "", value_name = "ADDRESS")]
    pub src: String,
    /// The largest packet on it
    #[arg(long, default_value_t = 0, value_name = "BYTES", hide_default_value = true)]
    pub mtu: u32,
    /// The gateway is on the link, whatever the addresses say
    #[arg(long)]
    pub onlink: bool,
    /// Of IPv6, where neither destination nor gateway says so
    #[arg(short = '6', long)]
    pub ipv6: bool,
}

/// A neighbour to be known.
#[derive(Debug, Args)]
pub struct Neighbour {
    /// Its address
    #[arg(value_name = "ADDRESS")]
    pub ip: String,
    /// Its MAC address
    pub mac: String,
    /// The interface
    #[arg(long, value_name = "NAME")]
    pub dev: String,
}

/// The packet filter.
#[derive(Debug, Subcommand)]
pub enum Iptables {
    /// Print the rules, as iptables-save does
    Save {
        /// Those of IPv6
        #[arg(short = '6', long)]
        ipv6: bool,
    },
    /// Set the rules that standard input has, as iptables-restore does
    Restore {
        /// Those of IPv6
        #[arg(short = '6', long)]
        ipv6: bool,
    },
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "not an octal mode up to 777".into())
}

fn prefix(text: &str) -> Result<(String, String), String> {
    let (address, length) = text.split_once('/').ok_or("the prefix length is missing")?;
    Ok((address.to_owned(), length.to_owned()))
}
