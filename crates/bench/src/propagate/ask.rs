//! The way of Nacre's own servers: each call of a method asks whether the classes that its server has compiled are current. So an update
//! is live everywhere once it is committed, and what it costs is part of the calls. Measured is the time until a call at each server, begun
//! when the commit was acknowledged, has run the new version.

use nacre_remote::Rendezvous;

use super::committer::{Committer, failed};
use super::point::{Measurement, Point, Way};
use super::{Args, CLASS, METHOD, WARM_UP, evaluate};
use crate::kit::machine::now_ns;
use crate::kit::server::{self, ServerPlan, Servers};
use crate::{BenchError, Common};

pub(super) async fn measure(args: &Args, common: &Common, point: &Point) -> Result<Measurement, BenchError> {
    let plan = ServerPlan { durability: point.durability, ..ServerPlan::volatile(point.servers) };
    let servers = Servers::start(&common.nacre()?, plan, args.files.folder()).await?;
    let store = server::open(&servers.uri).await?;
    let objects = one_at_each(&servers.uri, point.servers)?;
    let objects: Vec<nacre::Object> =
        objects.iter().map(|name| store.object(name)).collect::<Result<_, _>>()?;
    let mut committer = Committer::open(Way::Ask, &servers.uri).await?;
    let method = format!("{CLASS}.{METHOD}");
    let mut live: Vec<Vec<(u64, u64)>> = vec![Vec::new(); objects.len()];
    let (mut times, mut verified, mut before) = (Vec::new(), 0, servers.cpu_time());
    let mut next = tokio::time::Instant::now();
    for update in 0..WARM_UP + point.updates {
        if update == WARM_UP {
            before = servers.cpu_time();
        }
        tokio::time::sleep_until(next).await;
        let made = committer.commit().await?;
        let version = committer.version();
        let method = &method;
        let calls = objects.iter().map(|object| async move {
            let called = object.call(method, "").await.map_err(failed)?;
            let at_ns = now_ns();
            match called.output == version.to_string() {
                true => Ok(at_ns),
                false => {
                    let text = format!("a call after version {version} ran version {:?}", called.output);
                    Err(BenchError::Lost(text))
                }
            }
        });
        let ended = crate::kit::process::together(calls).await?;
        verified += ended.len() as u64;
        if update >= WARM_UP {
            times.push(made);
            live.iter_mut().zip(ended).for_each(|(live, at_ns)| live.push((version, at_ns)));
        }
        next = (next + point.pace()).max(tokio::time::Instant::now());
    }
    let mut measured = evaluate(WARM_UP, &times, &live)?;
    let cpu = servers.cpu_time().saturating_sub(before);
    measured.verified = verified;
    measured.store_cpu_us = cpu.as_secs_f64() * 1e6 / point.updates as f64;
    measured.store_memory_bytes = servers.memory_bytes() / u64::from(point.servers);
    measured.disk_bytes = servers.disk_bytes();
    Ok(measured)
}

/// Returns names of objects of which each server keeps one.
fn one_at_each(uri: &str, servers: u32) -> Result<Vec<String>, BenchError> {
    let addresses = uri.strip_prefix("nacre://").unwrap_or(uri);
    let hash = Rendezvous::new(addresses.split(','));
    let mut names: Vec<Option<String>> = vec![None; servers as usize];
    let mut found = 0;
    // With so many names, no server is without one but by a fault.
    for number in 0..1000 * u64::from(servers) {
        let name = format!("study/{number}");
        if let Some(place) = names.get_mut(hash.choose(name.as_bytes()))
            && place.is_none()
        {
            *place = Some(name);
            found += 1;
            if found == servers {
                return Ok(names.into_iter().flatten().collect());
            }
        }
    }
    Err(BenchError::Process(format!("no object was found for some of {servers} servers")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_keeps_one_of_the_objects() {
        let addresses: Vec<String> = (0..120).map(|port| format!("127.0.0.1:{}", 7000 + port)).collect();
        let uri = format!("nacre://{}", addresses.join(","));
        let names = one_at_each(&uri, 120).unwrap();
        let hash = Rendezvous::new(&addresses);
        let places: Vec<usize> = names.iter().map(|name| hash.choose(name.as_bytes())).collect();
        assert_eq!(places, (0..120).collect::<Vec<_>>());
    }
}
