//! A running reflector: one thread for the data, and one for work that may wait, which is the store's. Its pages and
//! its administration are served by others, through its [`Handle`].
//!
//! The data thread owns the [`Control`], the [`Forwarder`] and the plane. Others give it tasks, which it runs between
//! two turns; it gives others nothing but messages. So neither a slow store nor a scrape holds up a datagram.

mod administration;
mod balance;
mod core;
mod handle;
mod location_map;
mod metrics;
mod persistence;
pub mod report;
mod service;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use nacre::Store;
use nacre_planes::forward::{ForwardError, ForwardOptions, Forwarder, Listeners, read_clocks};
use nacre_planes::plane::{self, PlaneError, PlaneKind, PlaneOptions};
use nacre_reflect::control::{Control, ControlOptions, Event, StateOptions};
use nacre_reflect::cookie::Secret;
use nacre_reflect::table::{GroupId, GroupOptions};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use self::administration::{Task, Tasks};
use self::core::{Core, is_loopback};
pub use self::handle::Handle;
pub use self::location_map::{Changed, LOCATIONS_MAP, LocationMap, Snapshot};
use self::persistence::Locations;
pub use self::persistence::{location_map, relocate};
pub use self::report::Report;
pub use self::service::{
    EXPEL, EXPELLED, Expulsion, REFLECT, RELOCATE, RELOCATED, ReflectService, Relocation, expel_at,
    get_expulsion, get_relocated, get_relocation, put_expulsion, put_relocation, relocate_at,
};
use crate::balance::Balancing;

/// Options of a reflector.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The addresses whose ports are shared by groups.
    pub shared: Vec<SocketAddr>,
    /// The ports that are groups of their own, on the same addresses.
    pub ports: Vec<u16>,
    /// The number of groups on each shared port, with ids from 0 on.
    pub ids: u32,
    /// The options of groups that are not in `groups`.
    pub group: GroupOptions,
    /// The options of certain groups. A port of 0 is any shared port.
    pub groups: Vec<(GroupId, GroupOptions)>,
    /// The kind of plane; `None` for the best that works.
    pub plane: Option<PlaneKind>,
    /// The options of planes.
    pub plane_options: PlaneOptions,
    /// The options of the forwarder.
    pub forward: ForwardOptions,
    /// The options of the control plane. The reflector's own addresses, and broadcast ones, are filled in.
    pub control: ControlOptions,
    /// True if members may have loopback addresses, wherever the reflector listens.
    pub loopback: bool,
    /// The options of groups' states; `None` to keep none.
    pub state: Option<StateOptions>,
    /// The standbys of locations here for which none are named.
    pub standbys: Vec<SocketAddr>,
    /// The store for states and locations; `None` to keep them in memory.
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
            loopback: false,
            state: Some(StateOptions { every_ms: 30_000, ..StateOptions::default() }),
            standbys: Vec::new(),
            store: None,
        }
    }
}

/// An error of a reflector.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its sockets or its plane failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The plane that was asked for does not work here.
    #[error("{0}; choose another one with --plane, or auto for the best that works here")]
    Plane(#[from] PlaneError),
    /// A system call failed.
    #[error("cannot {action}: {why}")]
    System {
        /// The attempted operation.
        action: &'static str,
        /// The cause.
        why: std::io::Error,
    },
    /// The store cannot be used.
    #[error("{}", .0.message)]
    Store(#[from] nacre::Error),
    /// A thread panicked, and has said so on standard error.
    #[error("a thread of the reflector ended in a panic")]
    Panicked,
}

/// Returns the broadcast addresses of the networks that this machine is in.
fn broadcast() -> Result<Vec<Ipv4Addr>, ServerError> {
    let devices = nix::ifaddrs::getifaddrs()
        .map_err(|errno| ServerError::System { action: "list network devices", why: errno.into() })?;
    Ok(devices.filter_map(|device| Some(device.broadcast?.as_sockaddr_in()?.ip())).collect())
}

/// A running reflector. Dropping it stops it too, but reports no errors.
#[derive(derive_more::Debug)]
#[debug("Server")]
pub struct Server {
    addresses: Vec<SocketAddr>,
    plane: PlaneKind,
    plane_reason: String,
    handle: Handle,
    /// A channel that is closed when the data thread ends.
    alive: watch::Receiver<()>,
    /// The balancer, if there may be other reflectors.
    balancing: Option<Balancing>,
    data: Option<JoinHandle<Result<(), ServerError>>>,
    side: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the sockets, makes the plane, and starts. When this returns, members can join.
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
                let plane = plane::open(PlaneKind::Batch, &listeners, &options.plane_options)?;
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
            .map_err(|error| ServerError::System { action: "get random numbers", why: error.into() })?;
        let control_options = ControlOptions {
            loopback: options.loopback || is_loopback(&bound),
            own: bound.clone(),
            broadcast: broadcast()?,
            group_default: Some(options.group),
            state_default: options.state,
            ..options.control.clone()
        };
        let mut control = Control::new(control_options.clone(), Secret::new(secret));
        for (id, group) in groups(&options, shared) {
            control.set_group(id, group);
            control.set_state(read_clocks(), id, options.state);
        }

        let (sender, receiver) = mpsc::channel::<Task>();
        let tasks = Tasks::new(sender, forwarder.waker());
        let (wanted, wants) = unbounded_channel();
        let core = Core::new(control, forwarder, options.plane_options.clone(), plane_reason.clone(), wanted);
        let store = match &options.store {
            Some(store) => store.clone(),
            None => nacre::open("mem:")?,
        };
        let locations = Arc::new(Locations::new(
            &store,
            tasks.clone(),
            options.standbys.clone(),
            options.store.is_some(),
        )?);
        let handle = Handle { tasks, locations, pictures: Arc::default() };
        let (ending, alive) = watch::channel(());
        let shared = shared.to_vec();
        let mut server = Server {
            addresses: bound,
            plane: kind,
            plane_reason,
            handle,
            alive,
            balancing: None,
            data: None,
            side: None,
        };
        server.start_side(store.clone(), options.store.is_some(), wants)?;
        let thread = std::thread::Builder::new().name("nacre-reflect".to_owned());
        let thread = thread.spawn(move || {
            let ended = core.run(&receiver);
            drop(ending);
            ended
        });
        server.data = Some(thread.map_err(|why| ServerError::System { action: "start a thread", why })?);
        if options.store.is_some() {
            let Handle { tasks, locations, .. } = server.handle.clone();
            let (store, ids) = (Arc::new(store), options.ids);
            server.balancing = balance::start(store, tasks, locations, &control_options, &shared, ids)?;
        }
        Ok(server)
    }

    /// Starts the thread for work that may wait. A store that is `shared` may be changed by others.
    fn start_side(
        &mut self,
        store: Store,
        shared: bool,
        wants: UnboundedReceiver<Event>,
    ) -> Result<(), ServerError> {
        let system = |action| move |why| ServerError::System { action, why };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("start a runtime"))?;
        let Handle { tasks, locations, .. } = self.handle.clone();
        // A reflector knows where locations are before it says that it is ready; but a store that cannot be reached
        // now may be reached later, and most of what a reflector does needs none.
        let thread = std::thread::Builder::new().name("nacre-side".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                // It ends when the data thread has ended and what it wanted stored is.
                tokio::select! {
                    () = persistence::keep_states(store, tasks, wants) => {}
                    () = follow(&locations, shared) => {}
                }
            });
        });
        self.side = Some(thread.map_err(system("start a thread"))?);
        Ok(())
    }

    /// Returns the addresses that it listens on: the shared ports first, as they are bound.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a handle for pages and administration.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns the kind of plane that it started with.
    pub fn plane(&self) -> PlaneKind {
        self.plane
    }

    /// Returns the reason for the choice of the plane.
    pub fn plane_reason(&self) -> &str {
        &self.plane_reason
    }

    /// Waits until the data thread has ended: because the reflector was stopped, or by a failure, which
    /// [`Server::stop`] returns.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut alive = self.alive.clone();
        async move { while alive.changed().await.is_ok() {} }
    }

    /// Stops the reflector: returns once the members have been told, and states have been stored.
    ///
    /// # Errors
    /// The failure of one of its threads, if any.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        drop(self.balancing.take());
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

/// Follows the map of locations for ever. One that only this reflector changes is followed with each change.
async fn follow(locations: &Locations, shared: bool) {
    if !shared && locations.follow().await.is_ok() {
        std::future::pending::<()>().await;
    }
    locations.keep_following().await;
}

/// Returns all groups, with the options of each.
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
