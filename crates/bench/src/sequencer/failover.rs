//! The fail-over of a metadata rank: how long clients wait for positions when the daemon that hands them out is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use nacre::sequencer::Policy;
use serde::Serialize;

use super::NAME;
use crate::BenchError;
use crate::kit::server::{self, Daemon};

/// The clients, each with a connection of its own and one request under way.
const CLIENTS: usize = 4;
/// The time for which positions are taken before the rank is killed.
const BEFORE: Duration = Duration::from_millis(500);
/// The time for which they are taken once all clients have gone on.
const AFTER: Duration = Duration::from_millis(500);
/// The longest time that clients may wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank that was killed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailOver {
    /// The time from the kill until the first position after it, and until every client had one, in milliseconds.
    pub(crate) first_ms: f64,
    pub(crate) all_ms: f64,
    /// Positions per second before the kill, and after all clients had gone on.
    pub(crate) before_per_second: f64,
    pub(crate) after_per_second: f64,
    /// The positions taken; none was there twice.
    pub(crate) positions: usize,
}

/// Kills the rank that hands out positions in front of a store in another process, while another one stands by.
///
/// # Errors
/// [`BenchError`] if daemons cannot be started, a client sees an error, or a position was handed out twice.
pub(super) async fn measure(program: &Path) -> Result<FailOver, BenchError> {
    let keeper = Daemon::start(program, &["--store", "mem:", "--roles", "store"]).await?;
    let rank = ["--store", &keeper.uri, "--roles", "store,meta"];
    let mut first = Daemon::start(program, &rank).await?;
    let mut stores = Vec::new();
    for _ in 0..CLIENTS {
        stores.push(server::open(&keeper.uri).await?);
    }
    // Made before the second daemon starts, so that the first one has the authority.
    create(&stores[0], NAME).await?;
    let _second = Daemon::start(program, &rank).await?;
    stand_by(&stores[0], 1).await?;

    let begin = Instant::now();
    let killed = std::cell::Cell::new(None);
    let taken = std::cell::RefCell::new(vec![Vec::<(Instant, u64)>::new(); CLIENTS]);
    let has_gone_on = |client: &[(Instant, u64)]| match (killed.get(), client.last()) {
        (Some(killed), Some((last, _))) => *last > killed,
        _ => false,
    };
    let end = std::cell::Cell::new(None);
    let take = async |client: usize| {
        let sequencer = stores[client].sequencer(NAME).await?;
        while end.get().is_none_or(|end| Instant::now() < end) {
            let position = sequencer.next().await?;
            let mut taken = taken.borrow_mut();
            taken[client].push((Instant::now(), position));
            if end.get().is_none() && taken.iter().all(|client| has_gone_on(client)) {
                end.set(Some(Instant::now() + AFTER));
            }
        }
        Ok::<(), BenchError>(())
    };
    let kill = async {
        tokio::time::sleep(BEFORE).await;
        let at = Instant::now();
        first.kill().await?;
        // Replies that were on their way are taken in, and count as ones from before.
        tokio::time::sleep(Duration::from_millis(5)).await;
        killed.set(Some(at + Duration::from_millis(5)));
        Ok(at)
    };
    let (killed_at, _) =
        futures::future::try_join(kill, futures::future::try_join_all((0..CLIENTS).map(take))).await?;

    let taken = taken.into_inner();
    let counted = killed_at + Duration::from_millis(5);
    let gone_on = |client: &Vec<(Instant, u64)>| client.iter().map(|(at, _)| *at).find(|at| *at > counted);
    let back: Vec<Instant> = taken.iter().filter_map(gone_on).collect();
    let (Some(earliest), Some(latest)) = (back.iter().min(), back.iter().max()) else {
        return Err(BenchError::Process("no client went on after the rank was killed".into()));
    };
    let count = |from: Instant, to: Instant| {
        let within = |client: &Vec<(Instant, u64)>| {
            client.iter().filter(|(at, _)| (from..to).contains(at)).count() as f64
        };
        taken.iter().map(within).sum::<f64>() / (to - from).as_secs_f64()
    };
    let mut positions: Vec<u64> = taken.iter().flatten().map(|(_, position)| *position).collect();
    positions.sort_unstable();
    if let Some(twice) = positions.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BenchError::Process(format!("position {} was handed out twice", twice[0])));
    }
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    Ok(FailOver {
        first_ms: ms(*earliest - killed_at),
        all_ms: ms(*latest - killed_at),
        before_per_second: count(begin, killed_at),
        after_per_second: count(*latest, *latest + AFTER),
        positions: positions.len(),
    })
}

/// Creates a sequencer without a holder, once a rank has the authority.
///
/// # Errors
/// That of the last attempt.
pub(crate) async fn create(store: &nacre::Store, name: &str) -> Result<(), BenchError> {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = store.sequencer(name).await?.create(Policy::RoundTrip).await {
        if Instant::now() > until {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until a number of daemons are known to stand by.
///
/// # Errors
/// If they do not.
pub(crate) async fn stand_by(store: &nacre::Store, daemons: usize) -> Result<(), BenchError> {
    let ranks = store.object(&b"nacre/ranks/0"[..])?;
    let until = Instant::now() + PATIENCE;
    loop {
        let mut keys = ranks.keys(nacre::KeyRange::prefix("standby/"));
        let mut found = 0;
        while keys.next().await?.is_some() {
            found += 1;
        }
        if found >= daemons {
            return Ok(());
        }
        if Instant::now() > until {
            let text = format!("{found} of {daemons} daemons stand by");
            return Err(BenchError::Process(text));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
