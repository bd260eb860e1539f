//! What a daemon tells Prometheus: its metrics, the manual's table of them, and the alerts and the dashboard that use them.

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::reflect::http;
use crate::harness::{Server, run_with};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the metrics of a daemon with every role, as text.
fn metrics() -> String {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--roles", "store,lock,meta,reflect", "--http", "127.0.0.1:0", "--capacity", "64MiB"];
    let reflect = ["--reflect", "listen=127.0.0.1:0", "--reflect", "plane=sendto"];
    let server = Server::start(folder.path().to_str().unwrap(), &[&flags[..], &reflect].concat());
    server.run(["write", "a", "x"]).ok();
    let http_address = server.ready["http"].as_str().unwrap().to_owned();
    let (status, text) = http(&http_address, "GET", "/metrics", "");
    assert_eq!(status, 200, "{text}");
    text
}

/// A family of metrics.
#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Returns the families of a text, by the names that queries use.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut help = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, text)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help.insert(name.to_owned(), text.to_owned());
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let known = Family { kind: kind.to_owned(), help: help[name].clone(), labels: BTreeSet::new() };
            assert!(families.insert(name.to_owned(), known).is_none(), "{name} stands twice");
        } else if let Some((name, rest)) = line.split_once('{') {
            let labels = rest.split_once('}').unwrap().0;
            let found = families
                .iter_mut()
                .filter(|(known, _)| name.starts_with(&***known))
                .max_by_key(|f| f.0.len());
            let family = found.unwrap_or_else(|| panic!("{name} has no type")).1;
            let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            family.labels.extend(names.filter(|label| label != "le"));
        }
    }
    families
}

/// Returns whether a query names a metric of a daemon, which may be a part of a histogram.
fn is_known(families: &BTreeMap<String, Family>, name: &str) -> bool {
    let part = |suffix: &str| {
        let family = name.strip_suffix(suffix).and_then(|name| families.get(name));
        family.is_some_and(|family| family.kind == "histogram")
    };
    families.contains_key(name) || part("_bucket") || part("_count") || part("_sum")
}

/// Returns the metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let words = text.split(|byte: char| !is_part(byte));
    words
        .filter(|word| word.starts_with("nacre_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_manual_lists_every_metric_of_a_daemon() {
    let families = families(&metrics());
    let mut table = String::from("| metric | kind | meaning |\n|---|---|---|\n");
    for (name, Family { kind, help, labels }) in &families {
        assert!(help.len() >= 6 && !help.ends_with('.'), "the help of {name} is \"{help}\"");
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(", ")) };
        table.push_str(&format!("| `{name}{labels}` | {kind} | {help} |\n"));
    }
    let path = root().join("docs/metrics.md");
    let manual = std::fs::read_to_string(&path).unwrap();
    let (head, old) = manual.split_once("| metric |").unwrap();
    if std::env::var_os("NACRE_UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{table}")).unwrap();
    } else {
        assert_eq!(
            format!("| metric |{old}"),
            table,
            "NACRE_UPDATE=1 writes the table of docs/metrics.md anew"
        );
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]);
    // These are what a plain "curl" gets.
    assert_eq!(run_with(command, metrics().as_bytes()).text(), "");
}

#[test]
fn alerts_are_sound_and_fire_when_they_should() {
    for words in
        [["check", "rules", "monitoring/alerts.yml"], ["test", "rules", "monitoring/alerts.test.yml"]]
    {
        let mut command = Command::new("promtool");
        command.args(words).current_dir(root());
        run_with(command, b"").ok();
    }
}

#[test]
fn alerts_and_the_dashboard_ask_for_metrics_that_there_are() {
    let families = families(&metrics());
    let alerts = std::fs::read_to_string(root().join("monitoring/alerts.yml")).unwrap();
    let dashboard = std::fs::read_to_string(root().join("monitoring/dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let mut queries = Vec::new();
    for line in alerts.lines() {
        queries.extend(line.trim().strip_prefix("expr: ").map(str::to_owned));
    }
    let alerts = queries.len();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["query"].as_str().map(str::to_owned));
    }
    assert!(alerts >= 10 && queries.len() > alerts + 30, "{alerts} of {}", queries.len());
    for query in &queries {
        for name in named(query) {
            assert!(is_known(&families, &name), "{name} is no metric of a daemon: {query}");
        }
    }
    // Prometheus understands the dashboard's queries, once Grafana has put its variables in.
    let rules: String = queries[alerts..]
        .iter()
        .filter(|query| query.contains('('))
        .filter(|query| !query.starts_with("label_values"))
        .enumerate()
        .map(|(at, query)| {
            let query =
                query.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$job", "nacre");
            format!("  - record: panel_{at}\n    expr: {}\n", serde_json::to_string(&query).unwrap())
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yml");
    std::fs::write(&file, format!("groups:\n- name: panels\n  rules:\n{rules}")).unwrap();
    let mut command = Command::new("promtool");
    command.args(["check", "rules"]).arg(&file);
    run_with(command, b"").ok();
}
