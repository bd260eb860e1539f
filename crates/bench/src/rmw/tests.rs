//! Small end-to-end runs of the study.

use std::task::Poll;

use nacre_object::testkit::MemoryStore;
use nacre_object::{ObjectId, Outcome, Reply, StoreError, Transaction};

use super::*;

/// Returns arguments for short windows, in process.
fn args(words: &str) -> Args {
    let common = "--warm-up 10ms --window 100ms --repeat 1 ";
    let words: Vec<&str> = common.split_whitespace().chain(words.split_whitespace()).collect();
    Args { store: Some("mem:".into()), ..crate::kit::parse(&words).unwrap() }
}

/// A store that yields to other operations of the same thread before and after each of its answers, as a store behind a
/// network does.
struct Waiting(Arc<MemoryStore>);

impl ObjectStore for Waiting {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let (store, object) = (self.0.clone(), object.clone());
        Reply::pending(async move {
            one_turn().await;
            let outcome = store.apply(&object, transaction).await;
            one_turn().await;
            outcome
        })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

async fn one_turn() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn waiting() -> Option<Arc<dyn ObjectStore>> {
    Some(Arc::new(Waiting(Arc::new(MemoryStore::new()))))
}

/// Runs the study on a store in this process; returns its report, and how it ended.
fn run_on(args: &Args, store: Option<Arc<dyn ObjectStore>>) -> (Report<Results>, Result<(), BenchError>) {
    let mut report = new_report(args);
    let common = Common::default();
    let ended = study::runtime().unwrap().block_on(measure(args, &common, store, &mut report));
    (report, ended)
}

fn run_waiting(words: &str) -> Report<Results> {
    let (report, ended) = run_on(&args(words), waiting());
    ended.unwrap();
    report
}

#[test]
fn optimistic_updates_of_one_block_are_never_lost() {
    for protocol in ["", "--propose", "--reread", "--propose --reread"] {
        let report =
            run_waiting(&format!("--system optimistic --clients 2 --concurrency 8 --blocks 1 {protocol}"));
        let series = &report.series[0];
        let measured = &series.repetitions[0];
        assert!(measured.updates > 0 && measured.attempts > measured.updates, "{measured:?}");
        assert!(measured.success_rate < 1.0 && measured.failures_in_a_row_max > 0);
        assert!(measured.checked.is_clean() && measured.checked.blocks == 1);
        assert!(measured.checked.updates >= measured.updates);
        assert!(measured.latency.p50_us <= measured.latency.p99_us);
    }
}

#[test]
fn unlimited_blocks_never_meet() {
    let report = run_waiting("--system optimistic --clients 2 --objects 4 --forks 3");
    let measured = &report.series[0].repetitions[0];
    assert!(measured.updates > 0);
    assert_eq!(measured.success_rate, 1.0);
    assert_eq!(measured.checked.blocks, measured.checked.updates);
}

#[test]
fn the_checker_counts_what_uncoordinated_updates_lose() {
    let report = run_waiting("--system none --concurrency 8 --blocks 1");
    let series = &report.series[0];
    assert!(series.lost() > 0, "eight writers took turns on one block, and none overwrote another");
    assert!(report.to_string().contains("none (unsafe)"));
}

/// A store that breaks the guarantee of conditional writes: it accepts every one, whatever the current version.
struct Careless(Arc<dyn ObjectStore>);

impl ObjectStore for Careless {
    fn apply(&self, object: &ObjectId, mut transaction: Transaction) -> Reply<Outcome> {
        transaction.guards.clear();
        self.0.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

#[test]
fn a_store_that_loses_an_update_fails_the_run() {
    let store: Arc<dyn ObjectStore> = Arc::new(Careless(waiting().unwrap()));
    let error = run_on(&args("--system optimistic --concurrency 8 --blocks 1"), Some(store)).1.unwrap_err();
    assert!(matches!(error, BenchError::Lost(_)), "{error:?}");
    assert!(error.to_string().contains("updates lost"), "{error}");
}

/// A store that fails from some request on.
struct Failing(MemoryStore, std::sync::atomic::AtomicU32);

impl ObjectStore for Failing {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 100 {
            let error = StoreError::new(nacre_object::ErrorKind::OutOfSpace, "the disk is full");
            return Reply::ready(Err(error));
        }
        self.0.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.0.list(after, limit)
    }
}

#[test]
fn a_store_that_fails_ends_the_run_with_its_own_words() {
    let store: Arc<dyn ObjectStore> = Arc::new(Failing(MemoryStore::new(), Default::default()));
    let error = run_on(&args("--system optimistic --clients 3"), Some(store)).1.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

#[test]
fn the_lock_recipe_keeps_updates_apart() {
    run_until_all_work("--system zookeeper --clients 2 --concurrency 4 --blocks 1", 1);
}

/// Runs the study until each of so many systems has made an update in its window, in which a busy machine may hold one of them up. No
/// system may lose any.
fn run_until_all_work(words: &str, systems: usize) {
    let all_worked = (1..=5).any(|attempt| {
        let report = run_waiting(&format!("{words} --window {}ms", 300 * attempt));
        assert_eq!(report.series.len(), systems);
        let measured: Vec<_> = report.series.iter().map(|series| &series.repetitions[0]).collect();
        assert!(measured.iter().all(|measured| measured.checked.is_clean()), "{measured:?}");
        measured.iter().all(|measured| measured.updates > 0)
    });
    assert!(all_worked, "each time somebody did nothing: {words}");
}

#[test]
fn peers_lose_no_update_either() {
    for blocks in ["--blocks 2", "--blocks unlimited"] {
        let words = "--system optimistic --peers all --clients 2 --concurrency 4";
        run_until_all_work(&format!("{words} {blocks}"), 5);
    }
}

#[test]
fn results_are_written_with_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    run_waiting(&format!("--system optimistic --repeat 2 --results {}", file.display()));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(json["machine"]["cpus"].as_u64().unwrap() > 0);
    let series = &json["series"][0];
    assert_eq!(series["repetitions"].as_array().unwrap().len(), 2);
    assert!(series["updates_per_s"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(series["point"]["system"], "optimistic");
}

#[test]
fn the_figures_are_measured_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let words = format!("--figure 2,4 --quick --servers 2 --clients 2 --repeat 2 --window 20ms --out {out}");
    let report = run_waiting(&words);
    assert_eq!(report.figures.len(), 3);
    let shows = |file: &str, texts: &[&str]| {
        let svg = std::fs::read_to_string(folder.path().join(file)).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let found: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        texts.iter().for_each(|text| assert!(found.contains(text), "{file} lacks {text}: {found:?}"));
    };
    shows("figure-2a.svg", &["optimistic", "as in the paper", "unlimited", "1024"]);
    shows("figure-2b.svg", &["successful conditional writes (%)", "100"]);
    shows("figure-4.svg", &["zookeeper locks", "none (unsafe)", "16", "32"]);
}
