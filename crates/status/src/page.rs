//! The answers to requests, by path.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use hyper::StatusCode;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use nacre_quantity::escaped_text;
use serde::Serialize;

use crate::metrics::{Format, Metrics};
use crate::picture::{self, Picture};
use crate::{Part, process};

/// The time that a part may take for its share of an answer: a little more than it gives a store elsewhere, which is then
/// named.
const PART_TIMEOUT: Duration = Duration::from_secs(6);

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The media type of the body.
    pub media_type: &'static str,
    /// The body.
    pub body: String,
}

impl Answer {
    /// Creates an answer of one line of text.
    pub fn text(status: StatusCode, line: impl Into<String>) -> Answer {
        let mut body: String = line.into();
        body.push('\n');
        Answer { status, media_type: "text/plain; charset=utf-8", body }
    }

    /// Creates an answer with a value as JSON.
    pub fn json(value: &impl Serialize) -> Answer {
        match serde_json::to_string(value) {
            Ok(body) => Answer { status: StatusCode::OK, media_type: "application/json", body: body + "\n" },
            Err(error) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

/// A part's section of the status page.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The heading, if there is more than one section.
    pub title: String,
    /// Rows of a name and a value.
    pub rows: Vec<(String, String)>,
    /// Tables, below the rows.
    pub tables: Vec<Table>,
    /// Pictures, above the rows.
    pub pictures: Vec<Picture>,
}

impl Section {
    /// Adds a name and its value.
    pub fn row(&mut self, name: impl Into<String>, value: impl ToString) {
        self.rows.push((name.into(), value.to_string()));
    }
}

/// A table of the status page.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The heading.
    pub title: String,
    /// The headings of the columns.
    pub heads: Vec<&'static str>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

/// Returns the answer to a request for a path; metrics come in the given format.
pub(crate) async fn answer(parts: &[Arc<dyn Part>], path: &str, query: &str, format: Format) -> Answer {
    match path {
        "/" => status(parts).await,
        "/metrics" => scrape(parts, format).await,
        "/healthz" => health(parts).await,
        _ => {
            let find = |part: &Arc<dyn Part>| {
                part.paths().iter().find(|known| **known == path).map(|known| (part.clone(), *known))
            };
            match parts.iter().find_map(find) {
                Some((part, path)) => tokio::time::timeout(PART_TIMEOUT, part.page(path, query))
                    .await
                    .unwrap_or_else(|_| Answer::text(StatusCode::SERVICE_UNAVAILABLE, late())),
                None => Answer::text(StatusCode::NOT_FOUND, "there is no such page"),
            }
        }
    }
}

/// Returns the shares of all parts, which are asked at the same time. A part that does not answer in time has an error in
/// its place.
async fn in_time<T>(shares: Vec<BoxFuture<'_, Result<T, String>>>) -> Vec<Result<T, String>> {
    async fn bounded<T>(share: BoxFuture<'_, Result<T, String>>) -> Result<T, String> {
        tokio::time::timeout(PART_TIMEOUT, share).await.unwrap_or_else(|_| Err(late()))
    }
    join_all(shares.into_iter().map(bounded)).await
}

/// Returns the error that stands for the share of a part that did not answer in time.
fn late() -> String {
    format!("a part of this daemon did not answer within {} s", PART_TIMEOUT.as_secs())
}

async fn scrape(parts: &[Arc<dyn Part>], format: Format) -> Answer {
    let mut all = Vec::from(process::metrics());
    for metrics in in_time(parts.iter().map(|part| part.metrics()).collect()).await {
        match metrics {
            Ok(metrics) => all.push(metrics),
            Err(why) => return Answer::text(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
    match Metrics::text(all) {
        Ok(text) => {
            Answer { status: StatusCode::OK, media_type: format.media_type(), body: format.convert(text) }
        }
        Err(_) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written down"),
    }
}

/// Answers 200 if every part is well, otherwise 503 with a line for each part that is not.
async fn health(parts: &[Arc<dyn Part>]) -> Answer {
    let health = in_time(parts.iter().map(|part| part.health()).collect()).await;
    let troubles: Vec<String> = health.into_iter().filter_map(Result::err).collect();
    match troubles.is_empty() {
        true => Answer::text(StatusCode::OK, "ok"),
        false => Answer::text(StatusCode::SERVICE_UNAVAILABLE, troubles.join("\n")),
    }
}

/// The styles of the status page: light or dark as the reader's system is, and readable on a narrow screen.
const STYLE: &str = ":root{color-scheme:light dark}body{font:16px/1.4 sans-serif;margin:2em}\
    th{text-align:left;vertical-align:top;padding-right:2em}td{padding-right:1.5em;overflow-wrap:anywhere}\
    figure{margin:1em 0;max-width:60em;overflow-x:auto}figcaption{font-weight:bold}\
    @media(max-width:40em){body{margin:1em}th,td{padding-right:1em}}";

async fn status(parts: &[Arc<dyn Part>]) -> Answer {
    let sections = in_time(parts.iter().map(|part| part.section()).collect()).await;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="refresh" content="30";
                title { "nacre" }
                style { (PreEscaped(STYLE)) (PreEscaped(picture::STYLE)) }
            }
            body {
                h1 { "nacre" }
                @for section in &sections {
                    @match section {
                        Ok(section) => (show(section, parts.len() > 1)),
                        Err(why) => p { (escaped_text(why)) },
                    }
                }
                p {
                    @for path in parts.iter().flat_map(|part| part.paths()) {
                        a href=(path) { (path.trim_start_matches('/')) } " · "
                    }
                    a href="/metrics" { "metrics" } " · " a href="/healthz" { "health" }
                }
            }
        }
    };
    Answer { status: StatusCode::OK, media_type: "text/html; charset=utf-8", body: page.into_string() + "\n" }
}

/// Returns a section as HTML. Whatever others chose is escaped: for people as everywhere, and for HTML by `maud`.
fn show(section: &Section, is_titled: bool) -> Markup {
    let now = Instant::now();
    html! {
        @if is_titled { h2 { (escaped_text(&section.title)) } }
        // Numbers, and names that the program itself has chosen.
        @for picture in &section.pictures { (PreEscaped(picture.svg(now))) }
        table {
            @for (name, value) in &section.rows { tr { th { (escaped_text(name)) } td { (escaped_text(value)) } } }
        }
        @for table in &section.tables {
            h3 { (escaped_text(&table.title)) }
            table {
                tr { @for head in &table.heads { th { (head) } } }
                @for row in &table.rows { tr { @for cell in row { td { (escaped_text(cell)) } } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{FutureExt, pending, ready};

    use super::*;

    /// A part that never answers.
    struct Stuck;

    impl Part for Stuck {
        fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
            pending().boxed()
        }

        fn health(&self) -> BoxFuture<'_, Result<(), String>> {
            pending().boxed()
        }

        fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
            pending().boxed()
        }

        fn paths(&self) -> &'static [&'static str] {
            &["/stuck"]
        }

        fn page(&self, _path: &'static str, _query: &str) -> BoxFuture<'_, Answer> {
            pending().boxed()
        }
    }

    /// A part that answers at once, and is not well.
    struct Ill;

    impl Part for Ill {
        fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
            ready(Err("ill".to_owned())).boxed()
        }

        fn health(&self) -> BoxFuture<'_, Result<(), String>> {
            ready(Err("ill".to_owned())).boxed()
        }

        fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
            let mut section = Section::default();
            section.row("things", 7);
            ready(Ok(section)).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_does_not_answer_does_not_hide_the_others() {
        let parts: [Arc<dyn Part>; 2] = [Arc::new(Stuck), Arc::new(Ill)];
        let ask = async |path| answer(&parts, path, "", Format::Plain).await;
        let page = ask("/").await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.body.contains("did not answer within 6 s"), "{}", page.body);
        assert!(page.body.contains("<th>things</th><td>7</td>"), "{}", page.body);
        let health = ask("/healthz").await;
        assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(health.body.ends_with("did not answer within 6 s\nill\n"), "{}", health.body);
        for path in ["/metrics", "/stuck"] {
            let late = ask(path).await;
            assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(late.body.contains("did not answer"), "{path}: {}", late.body);
        }
    }

    #[test]
    fn what_others_say_cannot_change_the_page() {
        let mut section = Section { title: "<title>".to_owned(), ..Section::default() };
        section.row("<name>", "<script>");
        let rows = vec![vec!["<cell>".to_owned()]];
        section.tables.push(Table { title: "<table>".to_owned(), heads: vec!["<head>"], rows });
        let text = show(&section, true).into_string();
        for part in ["<title>", "<name>", "<script>", "<cell>", "<head>"] {
            assert!(!text.contains(part), "{text}");
        }
        assert!(text.contains("<h3>&lt;table&gt;</h3>") && text.contains("&lt;script&gt;"), "{text}");
    }

    #[test]
    fn what_others_say_cannot_reorder_the_page_or_spoil_its_html() {
        let mut section = Section::default();
        section.row("name\u{202e}eman", "a\0b\u{1b}[2J\u{9b}");
        let rows = vec![vec!["\u{2066}größe\u{2069}".to_owned()]];
        section.tables.push(Table { title: "\r".to_owned(), heads: Vec::new(), rows });
        let text = show(&section, false).into_string();
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        for part in [
            "<th>name\\xe2\\x80\\xaeeman</th>",
            "<td>a\\x00b\\x1b[2J\\xc2\\x9b</td>",
            "<td>\\xe2\\x81\\xa6größe\\xe2\\x81\\xa9</td>",
        ] {
            assert!(text.contains(part), "{part} is not in {text:?}");
        }
    }

    #[test]
    fn every_series_of_a_picture_has_a_colour_in_a_light_page_and_in_a_dark_one() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let picture = Picture::new("Requests", crate::picture::Scale::Count, &names);
        let svg = picture.svg(Instant::now());
        for index in 0..names.len() {
            assert!(svg.contains(&format!("class=\"series s{index}\"")), "{svg}");
            assert_eq!(picture::STYLE.matches(&format!(".s{index}{{stroke:")).count(), 2, "{index}");
        }
        assert!(
            picture::STYLE.contains("prefers-color-scheme:dark") && STYLE.contains("color-scheme:light dark")
        );
    }
}
