//! Capability policies in Lua: the scripts of the map `policies`, as the metadata rank of the daemon runs them.
//!
//! A thread follows the map from the time at which the first sequencer has such a policy, and compiles the scripts that are in
//! use, each version once. The rank runs them under its lock, within [`script::BOUNDS`].

mod script;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use nacre_map::{ClusterMap, FollowOptions, State};
use nacre_meta::capability::{Decision, ProgramName, Programs, Undecided, View};
use nacre_object::{ErrorKind, ObjectStore, StoreError};
use nacre_quantity::Escaped;
use tokio::sync::{Notify, oneshot};

use self::script::{BOUNDS, Script};

/// The map with the scripts.
const MAP: &str = "policies";
/// The most scripts that are known: each has a machine of its own.
const SCRIPTS_MAX: usize = 64;
/// The pause after a failure of the map that waiting does not heal by itself.
const PAUSE: Duration = Duration::from_secs(5);

/// The thread that follows the map of scripts. Dropping this ends it.
pub(crate) struct CapabilityPolicies {
    scripts: Scripts,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CapabilityPolicies {
    /// Starts to follow the map of a store.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub(crate) fn start(store: Arc<dyn ObjectStore>) -> Result<CapabilityPolicies, StoreError> {
        let failed = |error: std::io::Error| {
            let text = format!("cannot start the thread that follows capability policies: {error}");
            StoreError::new(ErrorKind::Io, text)
        };
        let map = ClusterMap::new(store, MAP)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let scripts = Scripts::default();
        let following = scripts.clone();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = following.follow(&map) => {}
                    _ = stopped => {}
                }
            })
        };
        let thread =
            std::thread::Builder::new().name("nacre-policies".to_owned()).spawn(work).map_err(failed)?;
        Ok(CapabilityPolicies { scripts, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the scripts for the rank.
    pub(crate) fn programs(&self) -> Arc<dyn Programs> {
        Arc::new(self.scripts.clone())
    }
}

impl Drop for CapabilityPolicies {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows capability policies ended in a panic");
        }
    }
}

/// An entry of the map as it was last seen.
#[derive(Debug)]
struct Loaded {
    /// Its version; 0 if there is no such entry.
    version: u64,
    text: Bytes,
    /// The script; none if the text is not sound.
    script: Option<Arc<Script>>,
}

/// The scripts that are in use. Cheap to clone.
#[derive(Clone, Debug, Default)]
struct Scripts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The scripts by their names; none for one that has not been looked for yet.
    known: Mutex<HashMap<ProgramName, Option<Loaded>>>,
    /// Wakes the thread when there is one more.
    more: Notify,
}

impl Scripts {
    fn lock(&self) -> MutexGuard<'_, HashMap<ProgramName, Option<Loaded>>> {
        // Each entry is put in as a whole.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the map once there is a script in use.
    async fn follow(&self, map: &ClusterMap) {
        self.0.more.notified().await;
        let mut follower = map.follow(FollowOptions::default());
        let (mut begun, mut failed) = (false, false);
        loop {
            tokio::select! {
                step = follower.next() => match step {
                    Ok(_) => (begun, failed) = (true, false),
                    Err(_) if failed => tokio::time::sleep(PAUSE).await,
                    Err(error) => {
                        failed = true;
                        tracing::warn!("the map \"{MAP}\", which has the capability policies, cannot be followed: {error}");
                    }
                },
                () = self.0.more.notified() => {}
            }
            if begun {
                self.refresh(follower.state());
            }
        }
    }

    /// Takes over what has changed of the scripts that are in use.
    fn refresh(&self, state: &State) {
        let is_new = |(name, loaded): (&ProgramName, &Option<Loaded>)| {
            let (version, text) = entry(state, *name);
            // A map that was made again counts its changes from the beginning, so the version alone does not tell.
            let same = loaded.as_ref().is_some_and(|known| known.version == version && known.text == text);
            (!same).then_some((*name, version, text))
        };
        let new: Vec<_> = self.lock().iter().filter_map(is_new).collect();
        for (name, version, text) in new {
            // Not under the lock: the rank may wait for that.
            let script = match version {
                0 => Err("there is no such entry; \"nacre map set\" makes one".to_owned()),
                _ => compile(name, version, &text),
            };
            if let Err(reason) = &script {
                tracing::warn!(
                    "the entry \"{name}\" of the map \"{MAP}\" is no policy, and holders are asked at once instead: {}",
                    Escaped::of(reason)
                );
            }
            let script = script.ok().map(Arc::new);
            // Another one may have taken its place meanwhile, and there is room for so many.
            if let Some(known) = self.lock().get_mut(&name) {
                *known = Some(Loaded { version, text, script });
            }
        }
    }

    /// Returns a script. One that is not known yet is looked for.
    fn script(&self, name: ProgramName) -> Result<Arc<Script>, Undecided> {
        let mut known = self.lock();
        if let Some(loaded) = known.get(&name) {
            return loaded.as_ref().and_then(|loaded| loaded.script.clone()).ok_or(Undecided);
        }
        if known.len() >= SCRIPTS_MAX
            && let Some(other) = known.keys().next().copied()
        {
            // If it is still in use, it comes back with its next decision.
            known.remove(&other);
        }
        known.insert(name, None);
        self.0.more.notify_one();
        Err(Undecided)
    }
}

/// Returns the version and the text of an entry; 0 and nothing if there is none.
fn entry(state: &State, name: ProgramName) -> (u64, Bytes) {
    let value = state.get(name.as_str().as_bytes());
    value.map_or((0, Bytes::new()), |value| (value.version, value.value.clone()))
}

fn compile(name: ProgramName, version: u64, text: &Bytes) -> Result<Script, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    Script::new(name.as_str(), version, text, BOUNDS)
}

impl Programs for Scripts {
    fn prepare(&self, name: ProgramName) {
        // It may not be there yet, and is asked for again when there is something to decide.
        let _ = self.script(name);
    }

    fn on_request(&self, now: Duration, name: ProgramName, view: &View<'_>) -> Result<Decision, Undecided> {
        self.script(name)?.on_request(now, view)
    }

    fn on_release(
        &self,
        now: Duration,
        name: ProgramName,
        view: &View<'_>,
    ) -> Result<Option<usize>, Undecided> {
        self.script(name)?.on_release(now, view)
    }
}
