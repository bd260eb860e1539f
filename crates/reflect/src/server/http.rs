//! The administration over HTTP: what a reflector does, and where locations are. It asks the data thread, which answers
//! between two turns, and never holds it up for longer than it takes to copy the numbers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::administration::{Tasks, Unavailable};
use super::keep::Locations;
use super::metrics;
use super::report::{Detail, Report};
use crate::table::GroupId;

/// What the pages are made of.
#[derive(Clone)]
struct Administration {
    tasks: Tasks,
    locations: Arc<Locations>,
}

/// Serves for ever. Without a listener, it serves nobody.
pub(super) async fn serve(listener: Option<std::net::TcpListener>, tasks: Tasks, locations: Arc<Locations>) {
    let Some(listener) = listener else { return std::future::pending().await };
    let shared = Administration { tasks, locations };
    let router = Router::new()
        .route("/", get(page))
        .route("/metrics", get(scrape))
        .route("/healthz", get(health))
        .route("/groups", get(groups))
        .route("/locations", get(places).post(change))
        .with_state(shared);
    // Connections that are open when the reflector stops are simply closed: nobody waits for a scrape.
    let served = async { axum::serve(TcpListener::from_std(listener)?, router).await };
    if let Err(error) = served.await {
        tracing::error!(%error, "the administration is served no more");
        // The reflector goes on without it.
        std::future::pending().await
    }
}

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{self}\n")).into_response()
    }
}

type Shared = State<Administration>;

async fn health(State(administration): Shared) -> Result<&'static str, Unavailable> {
    administration.tasks.report(Detail::Totals).await.map(|_| "ok\n")
}

async fn scrape(State(administration): Shared) -> Result<Response, Unavailable> {
    let report = administration.tasks.report(Detail::Groups).await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(match metrics::text(&report) {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written down\n").into_response(),
    })
}

/// Which groups: all, or `?group=PORT/ID`, with its members if `&members=true`.
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

async fn groups(State(administration): Shared, RawQuery(query): RawQuery) -> Result<Response, Unavailable> {
    let detail = match detail(query.as_deref().unwrap_or_default()) {
        Ok(detail) => detail,
        Err(why) => return Ok((StatusCode::BAD_REQUEST, format!("{why}\n")).into_response()),
    };
    let report = administration.tasks.report(detail).await?;
    if let Detail::Group { id, .. } = detail
        && report.groups.is_empty()
    {
        let why = format!("there is no group {id} at this reflector now\n");
        return Ok((StatusCode::NOT_FOUND, why).into_response());
    }
    Ok(as_json(&report))
}

async fn places(State(administration): Shared) -> Response {
    let snapshot = administration.locations.snapshot().await;
    let places: BTreeMap<&str, Value> = snapshot
        .places
        .iter()
        .map(|(name, place)| {
            let reflectors = place.reflectors.as_slice();
            (name.as_str(), json!({ "group": place.group, "reflectors": reflectors }))
        })
        .collect();
    as_json(&json!({ "version": snapshot.version, "locations": places }))
}

/// What a program says to change the map of locations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LocationChange {
    location: String,
    /// `ADDRESS:PORT` of the reflector; absent to remove the location.
    reflector: Option<SocketAddr>,
    /// The group's id there.
    #[serde(default)]
    group: u32,
    /// The reflector's standbys.
    #[serde(default)]
    standbys: Vec<SocketAddr>,
}

async fn change(State(administration): Shared, body: Bytes) -> Response {
    let change: LocationChange = match serde_json::from_slice(&body) {
        Ok(change) => change,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let place = change.reflector.map(|reflector| (reflector, change.group, change.standbys));
    match administration.locations.relocate(&change.location, place).await {
        Ok(version) => as_json(&json!({ "location": change.location, "version": version })),
        Err(why) => (StatusCode::CONFLICT, format!("{why}\n")).into_response(),
    }
}

fn as_json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn page(State(administration): Shared) -> Result<Html<String>, Unavailable> {
    let report = administration.tasks.report(Detail::Groups).await?;
    Ok(Html(html(&report)))
}

/// How many groups the page shows: those with the most copies a second.
const SHOWN_MAX: usize = 200;

fn html(report: &Report) -> String {
    let about = &report.reflector;
    let mut rows = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(rows, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(&value));
    };
    row("listening on", about.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", "));
    row("plane", format!("{} ({})", about.plane, about.plane_reason));
    row("up for", format!("{} s", about.up_seconds));
    row("groups", about.groups.to_string());
    row("members", about.members.to_string());
    row("datagrams admitted", about.admitted.to_string());
    row("copies", about.copies.to_string());
    for (reason, count) in &about.refused {
        row(&format!("refused: {}", reason.replace('_', " ")), count.to_string());
    }
    let mut groups: Vec<_> = report.groups.iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.copies_per_second, group.members)));
    let mut lines = String::new();
    for group in groups.iter().take(SHOWN_MAX) {
        let delay =
            group.delay_us.map_or_else(|| "–".to_owned(), |us| format!("{:.2} ms", f64::from(us) / 1000.0));
        let _ = writeln!(
            lines,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{delay}</td></tr>",
            escape(&group.group),
            group.members,
            group.datagrams_per_second,
            group.copies_per_second,
            group.copies,
            group.refused.values().sum::<u64>(),
        );
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>nacre reflect</title>\
         <style>body{{font:16px/1.4 sans-serif;margin:2em}}th{{text-align:left;padding-right:2em}}\
         td{{padding-right:1.5em}}</style>\
         <h1>nacre reflect</h1><table>\n{rows}</table>\
         <h2>Groups</h2><table><tr><th>group<th>members<th>in/s<th>copies/s<th>copies<th>refused<th>delay</tr>\n{lines}</table>\
         <p><a href=\"/metrics\">metrics</a> · <a href=\"/groups\">groups</a> · <a href=\"/locations\">locations</a> · \
         <a href=\"/healthz\">health</a></p></html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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

    #[test]
    fn what_others_say_cannot_change_the_page() {
        let mut report = Report::default();
        report.reflector.plane_reason = "<script>".to_owned();
        assert!(!html(&report).contains("<script>"));
    }
}
