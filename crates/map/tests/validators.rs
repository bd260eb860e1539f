//! Validators: what they may do to an update, what bounds them, and that the one in force is the one that ran.

use std::sync::Arc;

use nacre_logstore::{LogStore, Options};
use nacre_map::{ClusterMap, Committed, ProposeError, Proposer, Update, Validator, limit};
use nacre_object::Key;

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

fn map() -> ClusterMap {
    ClusterMap::new(Arc::new(LogStore::memory(Options::default())), "judged").unwrap()
}

async fn install(proposer: &Proposer, name: &str, prefix: &str, text: &str) {
    let validator = Validator { prefix: prefix.to_owned().into(), text: text.to_owned() };
    let installed = judged(|| proposer.set_validator("test", name, &validator)).await;
    installed.unwrap();
}

async fn set(proposer: &Proposer, author: &str, name: &str, value: &[u8]) -> Result<Committed, ProposeError> {
    judged(|| proposer.propose(Update::new(author).set(key(name), value.to_vec()))).await
}

/// Proposes something, again where the run of a validator was stopped for its time: on a busy machine any may stand still for longer,
/// which says nothing of the validator.
async fn judged<F: Future<Output = Result<Committed, ProposeError>>>(
    propose: impl Fn() -> F,
) -> Result<Committed, ProposeError> {
    for _ in 0..100 {
        let verdict = propose().await;
        if !matches!(&verdict, Err(error) if error.to_string().contains("ran for more than")) {
            return verdict;
        }
    }
    propose().await
}

async fn value(map: &ClusterMap, name: &str) -> Option<Vec<u8>> {
    map.get(&key(name)).await.unwrap().0.map(|found| found.value.to_vec())
}

#[tokio::test]
async fn they_refuse_replace_restrict_and_add() {
    let map = map();
    let proposer = map.proposer(Default::default());
    install(
        &proposer,
        "ports",
        "port/",
        "function validate(change)
           if change.who ~= 'ops' then return false, change.who .. ' may not set ' .. change.entry end
           if change.new == nil then return end
           local number = tonumber(change.new)
           if not number or number < 1 or number > 65535 then return false, 'no port: ' .. change.new end
           change.new = tostring(number // 1)
           change:set('last', change.entry)
           if change.old then change:set('was/' .. change.entry, change.old) end
           change:remove('free/' .. change.new)
         end",
    )
    .await;
    let said = |verdict: Result<Committed, ProposeError>| verdict.unwrap_err().to_string();
    let refused = said(set(&proposer, "eve", "port/a", b"80").await);
    assert_eq!(refused, "validator \"ports\" refuses entry \"port/a\": eve may not set port/a");
    assert!(said(set(&proposer, "ops", "port/a", b"high").await).ends_with("no port: high"));
    set(&proposer, "ops", "free/80", b"").await.unwrap();
    let committed = set(&proposer, "ops", "port/a", b"0x50").await.unwrap();
    assert_eq!(committed.changes.len(), 3, "{committed:?}");
    assert_eq!(value(&map, "port/a").await.unwrap(), b"80");
    assert_eq!(value(&map, "last").await.unwrap(), b"port/a");
    assert_eq!(value(&map, "free/80").await, None);
    set(&proposer, "ops", "port/a", b"81").await.unwrap();
    assert_eq!(value(&map, "was/port/a").await.unwrap(), b"80");
    // One change of several that is refused lets none of them through, and others are none of its business.
    let both = Update::new("ops").set(key("other"), "x").set(key("port/b"), "none");
    assert!(proposer.propose(both).await.is_err());
    assert_eq!(value(&map, "other").await, None);
    set(&proposer, "eve", "other", b"\xff\x00binary").await.unwrap();
    proposer.propose(Update::new("ops").remove(key("port/a"))).await.unwrap();
    assert_eq!(value(&map, "port/a").await, None);
}

#[tokio::test]
async fn bytes_pass_through_them_unchanged() {
    let map = map();
    let proposer = map.proposer(Default::default());
    install(&proposer, "same", "", "function validate(change) change.new = change.new .. '' end").await;
    for bytes in [&b""[..], b"\0", b"\xff\xfe\0text", "größe".as_bytes(), b"{\"$base16\":\"00\"}"] {
        set(&proposer, "w", "entry", bytes).await.unwrap();
        assert_eq!(value(&map, "entry").await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn hostile_ones_end_at_their_bounds_and_change_nothing() {
    let map = map();
    let proposer = map.proposer(Default::default());
    for (text, why) in [
        ("function validate() while true do end end", "instructions"),
        ("function validate() pcall(function() while true do end end) while true do end end", "instructions"),
        ("function validate(change) change.new = ('x'):rep(65537) end", "the limit is 65536"),
        ("function validate(change) change.new = ('x'):rep(1 << 24) end", "memory"),
        ("function validate(change) change.new = 7 end", "must be a string or nil"),
        ("function validate(change) change.new = {} end", "must be a string or nil"),
        (
            "function validate(change) for i = 1, 2000 do change:set('e' .. i, '') end end",
            "more than 1000 changes",
        ),
        ("function validate(change) change:set('next' .. change.entry, '') end", "nested more than 4 deep"),
        (
            "function validate(change) change:set(change.entry, change.new .. 'x') end",
            "nested more than 4 deep",
        ),
        ("function validate(change) change:set(1, {}) end", "both strings"),
        ("function validate(change) change:set('', 'x') end", "1 to 1024 bytes"),
        ("function validate(change) change:set(('n'):rep(1000), 'x') end", "the limit is 512"),
        ("function validate() nacre.set('a', 'b') end", ""),
        ("function validate() objclass.write(0, 1, bufferlist.new()) end", ""),
        ("function validate() return nacre.get('a') end", "no object"),
        ("function validate() error('on purpose') end", "on purpose"),
        ("function validate() error({}) end", ""),
        ("function validate() return false end", "no reason"),
        ("function validate() return false, {} end", "table"),
        ("function validate(c) local function f() return f() + 1 end f() end", ""),
        ("nacre = { unpack = function() end } function validate() end", ""),
    ] {
        install(&proposer, "hostile", "", text).await;
        let before = map.header().await.unwrap();
        let error = set(&proposer, "w", "entry", b"value").await.expect_err(text).to_string();
        assert!(error.contains(why) && error.contains("validator \"hostile\""), "{text}: {error}");
        assert_eq!(map.header().await.unwrap(), before, "{text}");
    }
    assert!(proposer.remove_validator("test", "hostile").await.unwrap());
    assert!(!proposer.remove_validator("test", "hostile").await.unwrap());
    set(&proposer, "w", "entry", b"value").await.unwrap();
}

#[tokio::test]
async fn unsound_ones_are_not_installed() {
    let proposer = map().proposer(Default::default());
    let long = format!("function validate() end -- {}", "x".repeat(limit::VALIDATOR_BYTES_MAX));
    for (name, text, why) in [
        ("v", "", "defines no function validate"),
        ("v", "function validate(", "expected near"),
        ("v", "function validate(change) end return 1", "<eof>"),
        ("v", "while true do end", "does not end"),
        ("v", "--[[ function validate() end", "comment"),
        ("v", "\x1bLua", "bytecode"),
        ("v", &*long, "limit"),
        ("a b", "function validate() end", "is not a valid name"),
        ("", "function validate() end", "is not a valid name"),
    ] {
        let validator = Validator { prefix: Default::default(), text: text.to_owned() };
        let error = proposer.set_validator("test", name, &validator).await.unwrap_err().to_string();
        assert!(error.contains(why), "{text:.40}: {error}");
    }
    assert_eq!(proposer.map().header().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_one_in_force_is_the_one_that_ran() {
    let map = map();
    let stamp = |number: usize| format!("function validate(c) c.new = '{number}' end");
    install(&map.proposer(Default::default()), "stamp", "", &stamp(0)).await;
    // Proposers that know nothing of each other, while the validator is replaced again and again.
    let tasks: Vec<_> = (0..4)
        .map(|name| {
            let map = map.clone();
            tokio::spawn(async move {
                let proposer = map.proposer(Default::default());
                for number in 0..50 {
                    set(&proposer, "w", &format!("{name}/{number}"), b"raw").await.unwrap();
                }
            })
        })
        .collect();
    let installer = map.proposer(Default::default());
    for number in 1..30 {
        install(&installer, "stamp", "", &stamp(number)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut in_force = None;
    let mut committed = 0;
    for record in map.history(0, 1000).await.unwrap() {
        for change in record.updates.iter().flat_map(|update| &update.changes) {
            match change.space {
                nacre_map::Space::Setting => {
                    let text = String::from_utf8_lossy(change.new.as_ref().unwrap()).into_owned();
                    in_force = text.split('\'').nth(1).map(str::to_owned);
                }
                nacre_map::Space::Entry => {
                    committed += 1;
                    assert_eq!(change.new.as_ref().unwrap(), in_force.as_ref().unwrap().as_bytes());
                }
            }
        }
    }
    assert_eq!(committed, 200);
}
