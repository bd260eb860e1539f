//! The answers to requests, by path.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use serde::Serialize;

use crate::metrics::{self, Metrics};
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

/// Returns the answer to a request for a path.
pub(crate) async fn answer(parts: &[Arc<dyn Part>], path: &str, query: &str) -> Answer {
    match path {
        "/" => status(parts).await,
        "/metrics" => scrape(parts).await,
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

async fn scrape(parts: &[Arc<dyn Part>]) -> Answer {
    let mut all = Vec::from(process::metrics());
    for part in parts {
        match part.metrics().await {
            Ok(metrics) => all.push(metrics),
            Err(why) => return Answer::text(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
    match Metrics::text(all) {
        Ok(body) => Answer { status: StatusCode::OK, media_type: metrics::MEDIA_TYPE, body },
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

async fn status(parts: &[Arc<dyn Part>]) -> Answer {
    let (mut sections, mut links) = (String::new(), String::new());
    for part in parts {
        match part.section().await {
            Ok(section) => sections.push_str(&html(&section, parts.len() > 1)),
            Err(why) => sections.push_str(&format!("<p>{}</p>\n", escape(&why))),
        }
        for path in part.paths() {
            links.push_str(&format!("<a href=\"{path}\">{}</a> · ", escape(path.trim_start_matches('/'))));
        }
    }
    let body = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"30\"><title>nacre</title>\
         <style>body{{font:16px/1.4 sans-serif;margin:2em}}th{{text-align:left;padding-right:2em}}\
         td{{padding-right:1.5em}}figure{{margin:1em 0;max-width:60em}}figcaption{{font-weight:bold}}\
         svg{{width:100%;font:11px sans-serif}}.grid{{stroke:#ccc}}.series{{fill:none;stroke-width:1.5;stroke-linecap:round}}</style>\
         <h1>nacre</h1>\n{sections}<p>{links}<a href=\"/metrics\">metrics</a> · <a href=\"/healthz\">health</a></p></html>\n"
    );
    Answer { status: StatusCode::OK, media_type: "text/html; charset=utf-8", body }
}

fn html(section: &Section, titled: bool) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    if titled {
        let _ = writeln!(text, "<h2>{}</h2>", escape(&section.title));
    }
    let now = Instant::now();
    text.extend(section.pictures.iter().map(|picture| picture.svg(now)));
    text.push_str("<table>\n");
    for (name, value) in &section.rows {
        let _ = writeln!(text, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    text.push_str("</table>\n");
    for table in &section.tables {
        let heads: String = table.heads.iter().map(|head| format!("<th>{}</th>", escape(head))).collect();
        let _ = writeln!(text, "<h3>{}</h3><table><tr>{heads}</tr>", escape(&table.title));
        for row in &table.rows {
            let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            let _ = writeln!(text, "<tr>{cells}</tr>");
        }
        text.push_str("</table>\n");
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
        let text = html(&section, true);
        for part in ["<title>", "<name>", "<script>", "<cell>", "<head>"] {
            assert!(!text.contains(part), "{text}");
        }
        assert!(text.contains("<h3>&lt;table&gt;</h3>") && text.contains("&lt;script&gt;"), "{text}");
    }
}
