//! `nacre reflect move`: the place of a location.

use std::net::SocketAddr;

use nacre::{Engine, Uri};
use nacre_daemon::reflect::{Relocation, location_map, relocate};
use nacre_quantity::Escaped;
use nacre_reflect::location::LocationEntry;
use nacre_reflect::wire::Reflectors;
use serde_json::{Value, json};

use super::admin_client::Admin;
use super::print;
use super::store::open_store;
use super::target::{Target, resolve};
use crate::arguments::Common;
use crate::command::map::default_author;
use crate::failure::Failure;

/// Set the place of a location, or move it and its members to another group or reflector
///
/// Locations are the entries of the map "locations" in the store that reflectors share; "nacre map get locations" shows
/// them. With --store, the map is changed there, and every reflector on that store follows. Otherwise the daemon of a
/// reflector changes it, over its own connection. Whether a reflector at that address has the group is not checked.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The location: any name
    #[arg(value_name = "LOCATION")]
    location: String,
    /// The group of the location: ID@HOST:PORT on a shared port, PORT@HOST for a port of its own
    #[arg(long, value_name = "GROUP@ADDRESS", required_unless_present = "remove")]
    to: Option<Target>,
    /// Standbys: reflectors that its members may join when that one is gone
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', requires = "to")]
    standby: Vec<SocketAddr>,
    /// Remove the location from the map instead
    #[arg(long, conflicts_with = "to")]
    remove: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Runs the command.
pub fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
    let place = match &args.to {
        None => None,
        Some(Target::Group { host, group }) => {
            let mut all = vec![resolve(host, group.port)?];
            all.extend(&args.standby);
            let reflectors = Reflectors::new(&all)
                .ok_or_else(|| Failure::Usage(format!("a location cannot have {} reflectors", all.len())))?;
            Some(LocationEntry { reflectors, group: group.id })
        }
        Some(Target::Location { .. }) => {
            return usage("--to names a group, such as 5@192.0.2.1:7400, and not another location");
        }
    };
    place.map_or(Ok(()), |place| place.check()).map_err(Failure::Usage)?;
    if let Some(uri) = &common.store {
        if args.admin.is_named() {
            return usage(
                "--store and --admin: the map is changed in the store, or by a daemon; name one of the two",
            );
        }
        let store = match Uri::from_os_str(uri).map(|uri| uri.engine) {
            Ok(Engine::Memory) => {
                return usage(
                    "the map in mem: would be gone when this command ends; name the daemon with --admin, or the store that \
                     the reflectors share",
                );
            }
            _ => open_store(uri, common.key.as_deref())?,
        };
        change_store(&store, &args.location, place)?;
        return said(&args, common, place, json!({ "location": args.location }));
    }
    let change = Relocation {
        location: args.location.clone(),
        group: place.map_or(0, |place| place.group),
        reflectors: place.map_or_else(Vec::new, |place| place.reflectors.as_slice().to_vec()),
    };
    let version = args.admin.relocate(common, change)?;
    said(&args, common, place, json!({ "location": args.location, "version": version }))
}

/// Changes the map in the store.
fn change_store(store: &nacre::Store, name: &str, to: Option<LocationEntry>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::io("start the program's runtime"))?;
    let map = location_map(store, &default_author()).map_err(|error| Failure::Failed(error.message))?;
    runtime.block_on(relocate(&map, name, to)).map(drop).map_err(Failure::Failed)
}

fn said(args: &Args, common: &Common, place: Option<LocationEntry>, done: Value) -> Result<(), Failure> {
    let location = Escaped::of(&args.location);
    match common.json {
        true => print::line(&done.to_string()),
        false => match place {
            None => print::line(&format!("location \"{location}\" was removed")),
            Some(LocationEntry { reflectors, group }) => {
                print::line(&format!("location \"{location}\" is at {group}@{}", reflectors.first()))
            }
        },
    }
}
