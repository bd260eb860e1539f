//! The interface of a running reflector to other threads, for its HTTP pages and for the administration. Both ask the
//! data thread, which answers between two turns, and is never held up for longer than it takes to copy the numbers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::future::{BoxFuture, FutureExt};
use nacre_object::{ErrorKind, Reply, StoreError};
use nacre_planes::forward::read_clocks;
use nacre_reflect::control::BANS_MAX;
use nacre_reflect::table::GroupId;
use nacre_status::{Answer, Metrics, Part, Picture, Scale, Section, StatusCode, Table};
use serde_json::{Value, json};

use super::administration::{Tasks, Unavailable};
use super::metrics::Source;
use super::persistence::Locations;
use super::report::{About, Detail, GroupReport, Report};
use super::service::{Expulsion, Relocation};
use crate::shown::up_for;

/// A handle on a running reflector. It keeps nothing alive: once the reflector has ended, every answer says so.
#[derive(Clone, derive_more::Debug)]
#[debug("Handle")]
pub struct Handle {
    pub(super) tasks: Tasks,
    pub(super) locations: Arc<Locations>,
    pub(super) pictures: Arc<Pictures>,
}

/// The pictures of the status page, and the counters at their last sample.
pub(super) struct Pictures(Mutex<Sampled>);

struct Sampled {
    last: Option<(Instant, Report)>,
    rates: Picture,
}

impl Default for Pictures {
    fn default() -> Self {
        let series = ["datagrams admitted", "copies", "datagrams refused", "copies too old"];
        let rates = Picture::new("Datagrams a second", Scale::Count, &series);
        Pictures(Mutex::new(Sampled { last: None, rates }))
    }
}

impl Pictures {
    /// Adds what happened since the sample before.
    fn sample(&self, now: Instant, report: Report) {
        let mut sampled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, last)) = &sampled.last {
            let seconds = now.duration_since(*before).as_secs_f64().max(1e-3);
            let (about, last) = (&report.reflector, &last.reflector);
            let refused = |about: &About| about.refused.values().sum::<u64>();
            let counts = [
                (about.admitted, last.admitted),
                (about.copies, last.copies),
                (refused(about), refused(last)),
                (about.too_old, last.too_old),
            ];
            let rates = counts.map(|(now, then)| Some(now.saturating_sub(then) as f64 / seconds));
            sampled.rates.push(now, rates.to_vec());
        }
        sampled.last = Some((now, report));
    }

    fn drawn(&self) -> Vec<Picture> {
        vec![self.0.lock().unwrap_or_else(PoisonError::into_inner).rates.clone()]
    }
}

impl Handle {
    /// Changes the map of locations, and returns its new epoch.
    ///
    /// # Errors
    /// The reply is `Invalid` if the map cannot be changed like that, or at present.
    pub fn relocate(&self, change: Relocation) -> Reply<u64> {
        let locations = self.locations.clone();
        Reply::pending(async move {
            let mut reflectors = change.reflectors.into_iter();
            let entry = reflectors.next().map(|reflector| (reflector, change.group, reflectors.collect()));
            let epoch = locations.relocate(&change.location, entry).await;
            epoch.map_err(|why| StoreError::new(ErrorKind::Invalid, why))
        })
    }

    /// Throws members out, or ends a ban. Returns the number of members that were removed, or of bans that ended.
    ///
    /// # Errors
    /// The reply is `Invalid` if there are too many bans, `Unavailable` if the reflector is stopping.
    pub fn expel(&self, order: Expulsion) -> Reply<u64> {
        let tasks = self.tasks.clone();
        Reply::pending(async move {
            let Expulsion { subject, group, seconds, lift } = order;
            let done = tasks.ask(move |core| match lift {
                true => Some(u64::from(core.control.pardon(subject, group))),
                false => core.control.expel(read_clocks(), subject, group, seconds),
            });
            let done =
                done.await.map_err(|gone| StoreError::new(ErrorKind::Unavailable, gone.to_string()))?;
            done.ok_or_else(|| {
                let text =
                    format!("there are {BANS_MAX} bans already; end some with \"nacre reflect ban --lift\"");
                StoreError::new(ErrorKind::Invalid, text)
            })
        })
    }

    async fn report(&self, detail: Detail) -> Result<Report, String> {
        self.tasks.report(detail).await.map_err(|gone: Unavailable| gone.to_string())
    }

    async fn groups(&self, query: String) -> Answer {
        let detail = match detail(&query) {
            Ok(detail) => detail,
            Err(why) => return Answer::text(StatusCode::BAD_REQUEST, why),
        };
        let report = match self.report(detail).await {
            Ok(report) => report,
            Err(why) => return Answer::text(StatusCode::SERVICE_UNAVAILABLE, why),
        };
        match detail {
            Detail::Group { id, .. } if report.groups.is_empty() => {
                Answer::text(StatusCode::NOT_FOUND, format!("there is no group {id} at this reflector now"))
            }
            _ => Answer::json(&report),
        }
    }

    async fn entries(&self) -> Answer {
        let snapshot = self.locations.snapshot().await;
        let entries: BTreeMap<&str, Value> = snapshot
            .entries
            .iter()
            .map(|(name, entry)| {
                let reflectors = entry.reflectors.as_slice();
                (name.as_str(), json!({ "group": entry.group, "reflectors": reflectors }))
            })
            .collect();
        Answer::json(&json!({ "version": snapshot.epoch, "locations": entries }))
    }
}

impl Part for Handle {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        async {
            let report = self.report(Detail::Groups).await?;
            Ok(Metrics { prefix: "nacre_reflect", source: Box::new(Source(report)) })
        }
        .boxed()
    }

    /// Reports the reflector as healthy while the data thread answers.
    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        async { self.report(Detail::Totals).await.map(drop) }.boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        async {
            let mut section = section(&self.report(Detail::Groups).await?);
            section.pictures = self.pictures.drawn();
            Ok(section)
        }
        .boxed()
    }

    fn sample(&self) -> BoxFuture<'_, ()> {
        async {
            if let Ok(report) = self.report(Detail::Totals).await {
                self.pictures.sample(Instant::now(), report);
            }
        }
        .boxed()
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/groups", "/locations"]
    }

    fn page(&self, path: &'static str, query: &str) -> BoxFuture<'_, Answer> {
        let query = query.to_owned();
        match path {
            "/groups" => self.groups(query).boxed(),
            _ => self.entries().boxed(),
        }
    }
}

/// Parses the query for groups: all, or `?group=PORT/ID`, with its members if `&members=true`.
fn detail(query: &str) -> Result<Detail, String> {
    let (mut group, mut members) = (None, false);
    for (name, value) in query
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
    {
        match name {
            // Some clients escape the slash.
            "group" => group = Some(value.replace("%2F", "/").replace("%2f", "/").parse::<GroupId>()?),
            "members" => members = value == "true",
            _ => return Err(format!("\"{name}\" is not understood; group and members are")),
        }
    }
    Ok(group.map_or(Detail::Groups, |id| Detail::Group { id, members }))
}

/// The greatest number of groups on the page: those with the most copies a second.
const SHOWN_MAX: usize = 200;

fn section(report: &Report) -> Section {
    let about = &report.reflector;
    let mut section = Section { title: "reflect".to_owned(), ..Section::default() };
    let addresses: Vec<String> = about.addresses.iter().map(SocketAddr::to_string).collect();
    section.row("listening on", addresses.join(", "));
    section.row("plane", format!("{} ({})", about.plane, about.plane_reason));
    section.row("up for", up_for(about.up_seconds));
    section.row("groups", about.groups);
    section.row("members", about.members);
    section.row("datagrams admitted", about.admitted);
    section.row("copies", about.copies);
    for (reason, count) in &about.refused {
        section.row(format!("refused: {}", reason.replace('_', " ")), count);
    }
    let mut groups: Vec<_> = report.groups.iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.copies_per_second, group.members)));
    let row = |group: &&GroupReport| {
        let delay =
            group.delay_us.map_or_else(|| "–".to_owned(), |us| format!("{:.2} ms", f64::from(us) / 1000.0));
        vec![
            group.group.clone(),
            group.members.to_string(),
            group.datagrams_per_second.to_string(),
            group.copies_per_second.to_string(),
            group.copies.to_string(),
            group.refused.values().sum::<u64>().to_string(),
            delay,
        ]
    };
    section.tables.push(Table {
        title: "Groups".to_owned(),
        heads: vec!["group", "members", "in/s", "copies/s", "copies", "refused", "delay"],
        rows: groups.iter().take(SHOWN_MAX).map(row).collect(),
    });
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_group() {
        let id = GroupId { port: 7400, id: 5 };
        assert_eq!(detail(""), Ok(Detail::Groups));
        assert_eq!(detail("group=7400/5"), Ok(Detail::Group { id, members: false }));
        assert_eq!(detail("group=7400%2F5&members=true"), Ok(Detail::Group { id, members: true }));
        assert!(detail("group=x").is_err());
        assert!(detail("colour=red").is_err());
    }
}
