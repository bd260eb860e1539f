//! The answers to requests, by path.

use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use crate::metrics::{Format, Metrics};
use crate::picture::Picture;
use crate::{Part, process};

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
                Some((part, path)) => part.page(path, query).await,
                None => Answer::text(StatusCode::NOT_FOUND, "there is no such page"),
            }
        }
    }
}

async fn scrape(parts: &[Arc<dyn Part>], format: Format) -> Answer {
    let mut all = Vec::from(process::metrics());
    for part in parts {
        match part.metrics().await {
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
    let mut troubles = Vec::new();
    for part in parts {
        troubles.extend(part.health().await.err());
    }
    match troubles.is_empty() {
        true => Answer::text(StatusCode::OK, "ok"),
        false => Answer::text(StatusCode::SERVICE_UNAVAILABLE, troubles.join("\n")),
    }
}

/// The styles of the status page.
const STYLE: &str = "body{font:16px/1.4 sans-serif;margin:2em}th{text-align:left;padding-right:2em}\
    td{padding-right:1.5em}figure{margin:1em 0;max-width:60em}figcaption{font-weight:bold}\
    svg{width:100%;font:11px sans-serif}.grid{stroke:#ccc}.series{fill:none;stroke-width:1.5;stroke-linecap:round}";

async fn status(parts: &[Arc<dyn Part>]) -> Answer {
    let mut sections = Vec::with_capacity(parts.len());
    for part in parts {
        sections.push(part.section().await);
    }
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                meta http-equiv="refresh" content="30";
                title { "nacre" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "nacre" }
                @for section in &sections {
                    @match section {
                        Ok(section) => (show(section, parts.len() > 1)),
                        Err(why) => p { (why) },
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

/// Returns a section as HTML, in which whatever others chose is escaped.
fn show(section: &Section, is_titled: bool) -> Markup {
    let now = Instant::now();
    html! {
        @if is_titled { h2 { (section.title) } }
        // Numbers, and names that the program itself has chosen.
        @for picture in &section.pictures { (PreEscaped(picture.svg(now))) }
        table {
            @for (name, value) in &section.rows { tr { th { (name) } td { (value) } } }
        }
        @for table in &section.tables {
            h3 { (table.title) }
            table {
                tr { @for head in &table.heads { th { (head) } } }
                @for row in &table.rows { tr { @for cell in row { td { (cell) } } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
