//! A reflector that runs: one thread for the data, and one for what may wait, which is the store. What it shows and what it
//! is asked to change comes from others, by its [`Handle`].
//!
//! The data thread owns the [`Control`], the [`Forwarder`] and the plane. Others give it tasks, which it runs between two
//! turns; it gives others nothing but messages. So neither a slow store nor a scrape holds up a datagram.

mod administration;
mod core;
mod handle;
mod keep;
mod metrics;
pub mod report;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use nacre::Store;
use nacre_rpc::ClusterKey;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use self::administration::{Task, Tasks};
use self::core::{Core, is_loopback};
use self::keep::Locations;
use crate::control::{Control, ControlOptions, Event, StateOptions};
use crate::cookie::Secret;
use crate::forward::{ForwardError, ForwardOptions, Forwarder, Listeners, Now};
use crate::plane::{self, Kind, PlaneError, PlaneOptions};
use crate::table::{GroupId, GroupOptions};

pub use self::handle::{Handle, LocationChange, MOVE_METHOD};
pub use self::keep::{LOCATIONS_OBJECT, location_map, relocate};
pub use self::report::Report;

/// How to run a reflector.
#[derive(Clone)]
pub struct ServerOptions {
    /// Addresses whose ports groups share.
    pub shared: Vec<SocketAddr>,
    /// Ports that are groups of their own, on the same addresses.
    pub ports: Vec<u16>,
    /// Groups on each shared port: those with ids below this.
    pub ids: u32,
    /// The options of groups that are not named.
    pub group: GroupOptions,
    /// The options of groups that are. A port of 0 is any shared port.
    pub groups: Vec<(GroupId, GroupOptions)>,
    /// How copies are made; `None` for the best that works.
    pub plane: Option<Kind>,
    /// What planes are told.
    pub plane_options: PlaneOptions,
    /// What the forwarder is told.
    pub forward: ForwardOptions,
    /// What the control plane is told. The reflector's own addresses, and broadcast ones, are filled in.
    pub control: ControlOptions,
    /// The operator's key.
    pub key: Option<ClusterKey>,
    /// Members may have loopback addresses, wherever the reflector listens.
    pub loopback: bool,
    /// How the states of groups are kept; `None` if they are not.
    pub state: Option<StateOptions>,
    /// Reflectors that locations here have as standbys, where nobody names others.
    pub standbys: Vec<SocketAddr>,
    /// Where states and locations are kept; in memory if nowhere else.
    pub store: Option<Store>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            shared: Vec::new(),
            ports: Vec::new(),
            ids: 1024,
            group: GroupOptions::default(),
            groups: Vec::new(),
            plane: None,
            plane_options: PlaneOptions::default(),
            forward: ForwardOptions::default(),
            control: ControlOptions::default(),
            key: None,
            loopback: false,
            state: Some(StateOptions { every_ms: 30_000, ..StateOptions::default() }),
            standbys: Vec::new(),
            store: None,
        }
    }
}

/// A reflector that cannot be, or can no more.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its sockets or its plane failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The plane that was asked for does not work here.
    #[error("{0}; choose another one with --plane, or auto for the best that works here")]
    Plane(#[from] PlaneError),
    /// The system refuses something else.
    #[error("cannot {what}: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why it cannot be done.
        why: std::io::Error,
    },
    /// The store cannot be used.
    #[error("{}", .0.message)]
    Store(#[from] nacre::Error),
    /// A thread panicked, which it has said on standard error.
    #[error("a thread of the reflector ended in a panic")]
    Panicked,
}

/// The broadcast addresses of the networks that this machine is in.
fn broadcast() -> Result<Vec<Ipv4Addr>, ServerError> {
    let devices = nix::ifaddrs::getifaddrs()
        .map_err(|errno| ServerError::System { what: "list network devices", why: errno.into() })?;
    Ok(devices.filter_map(|device| Some(device.broadcast?.as_sockaddr_in()?.ip())).collect())
}

/// A running reflector. Dropping it stops it too, but tells nobody what went wrong.
pub struct Server {
    addresses: Vec<SocketAddr>,
    plane: Kind,
    plane_reason: String,
    handle: Handle,
    /// Closed when the data thread ends.
    alive: watch::Receiver<()>,
    data: Option<JoinHandle<Result<(), ServerError>>>,
    side: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the sockets, makes the plane, and begins. When this returns, members can join.
    pub fn start(options: ServerOptions) -> Result<Server, ServerError> {
        let mut addresses = options.shared.clone();
        let mut hosts: Vec<IpAddr> = options.shared.iter().map(SocketAddr::ip).collect();
        hosts.sort();
        hosts.dedup();
        addresses.extend(
            options.ports.iter().flat_map(|port| hosts.iter().map(|host| SocketAddr::new(*host, *port))),
        );
        let listeners = Listeners::open(&addresses)?;
        let bound: Vec<SocketAddr> = listeners.addresses().collect();
        let shared = &bound[..options.shared.len()];
        let (plane, plane_reason) = match options.plane {
            // Programs in the kernel sit at devices; on loopback, where everything is one machine, there is none to win at.
            None if is_loopback(&bound) && options.plane_options.devices.is_empty() => {
                let plane = plane::open(Kind::Batch, &listeners, &options.plane_options)?;
                (plane, "all members are on loopback".to_owned())
            }
            None => plane::auto(&listeners, &options.plane_options)?,
            Some(kind) => {
                let plane = plane::open(kind, &listeners, &options.plane_options)?;
                (plane, "it was asked for".to_owned())
            }
        };
        let kind = plane.kind();
        let forwarder = Forwarder::new(listeners, plane, options.forward)?;
        let mut secret = [0; 32];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| ServerError::System { what: "get random numbers", why: error.into() })?;
        let mut control = Control::new(
            ControlOptions {
                loopback: options.loopback || is_loopback(&bound),
                own: bound.clone(),
                broadcast: broadcast()?,
                group_default: Some(options.group),
                state_default: options.state,
                token_key: options.key.clone(),
                ..options.control.clone()
            },
            Secret::new(secret),
        );
        for (id, group) in groups(&options, shared) {
            control.set_group(id, group);
            control.set_state(Now::read(), id, options.state);
        }

        let (sender, receiver) = mpsc::channel::<Task>();
        let tasks = Tasks::new(sender, forwarder.waker());
        let (wanted, wants) = unbounded_channel();
        let core = Core::new(control, forwarder, options.plane_options.clone(), plane_reason.clone(), wanted);
        let store = match &options.store {
            Some(store) => store.clone(),
            None => nacre::open("mem:")?,
        };
        let locations = Arc::new(Locations::new(&store, tasks.clone(), options.standbys.clone())?);
        let handle = Handle { tasks, locations };
        let (ending, alive) = watch::channel(());
        let mut server =
            Server { addresses: bound, plane: kind, plane_reason, handle, alive, data: None, side: None };
        server.start_side(store, wants)?;
        let thread = std::thread::Builder::new().name("nacre-reflect".to_owned());
        let thread = thread.spawn(move || {
            let ended = core.run(&receiver);
            drop(ending);
            ended
        });
        server.data = Some(thread.map_err(|why| ServerError::System { what: "start a thread", why })?);
        Ok(server)
    }

    /// The thread for what may wait.
    fn start_side(&mut self, store: Store, wants: UnboundedReceiver<Event>) -> Result<(), ServerError> {
        let system = |what| move |why| ServerError::System { what, why };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("start a runtime"))?;
        let Handle { tasks, locations } = self.handle.clone();
        // A reflector knows where locations are before it says that it is ready; but a store that cannot be reached
        // now may be reached later, and most of what a reflector does needs none.
        let thread = std::thread::Builder::new().name("nacre-side".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                // It ends when the data thread has ended and what it wanted stored is.
                tokio::select! {
                    () = keep::keep_states(store, tasks, wants) => {}
                    () = locations.keep_following() => {}
                }
            });
        });
        self.side = Some(thread.map_err(system("start a thread"))?);
        Ok(())
    }

    /// Where it listens: the shared ports first, as they are bound.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle for what shows it and what administers it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// How copies were made when it began.
    pub fn plane(&self) -> Kind {
        self.plane
    }

    /// Why it was that plane.
    pub fn plane_reason(&self) -> &str {
        &self.plane_reason
    }

    /// Waits until the data thread has ended: because the reflector was stopped, or by a failure, which
    /// [`Server::stop`] tells.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut alive = self.alive.clone();
        async move { while alive.changed().await.is_ok() {} }
    }

    /// Tells the members that it goes, and ends when they have been told and what has to be stored is.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        self.handle.tasks.give(Core::close);
        let data = match self.data.take() {
            None => Ok(()),
            Some(data) => data.join().map_err(|_| ServerError::Panicked).and_then(|ended| ended),
        };
        if let Some(side) = self.side.take() {
            side.join().map_err(|_| ServerError::Panicked)?;
        }
        data
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever wants to know what went wrong has called stop().
        let _ = self.end();
    }
}

/// All groups, with the options of each.
fn groups(options: &ServerOptions, shared: &[SocketAddr]) -> Vec<(GroupId, GroupOptions)> {
    let mut all = Vec::new();
    let mut shared: Vec<u16> = shared.iter().map(SocketAddr::port).collect();
    shared.sort_unstable();
    shared.dedup();
    for port in &shared {
        all.extend((0..options.ids).map(|id| (GroupId { port: *port, id }, options.group)));
    }
    all.extend(options.ports.iter().map(|port| (GroupId { port: *port, id: 0 }, options.group)));
    for (id, group) in &options.groups {
        match id.port {
            0 => all.extend(shared.iter().map(|port| (GroupId { port: *port, id: id.id }, *group))),
            _ => all.push((*id, *group)),
        }
    }
    all
}
