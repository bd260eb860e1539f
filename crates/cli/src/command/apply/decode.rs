//! Transactions from their JSON.

use nacre::{
    ByteRange, Check, Fork, Guard, Intent, Key, KeyRange, ObjectId, ReadOp, Transaction, WriteOp, limit,
    stage,
};
use nacre_quantity::unescape;

use super::node::{Fields, Node, Wrong};

const GUARDS: &[&str] = &[
    "exists",
    "absent",
    "region",
    "proposal",
    "key",
    "attribute",
    "version",
    "key_version",
    "size",
    "fence",
];
const CHECKS: &[&str] =
    &["present", "absent", "equal", "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"];
const READS: &[&str] = &[
    "range",
    "extents",
    "stat",
    "forks",
    "key",
    "keys",
    "attribute",
    "attributes",
    "versioned_key",
    "versioned_keys",
    "fences",
];
const WRITES: &[&str] = &[
    "create",
    "write",
    "append",
    "zero",
    "truncate",
    "remove_fork",
    "replace_fork",
    "set_key",
    "remove_key",
    "set_attribute",
    "remove_attribute",
    "raise_fence",
    "fence_session",
    "remove",
];

const RANGE: &[&str] = &["fork", "offset", "length"];
const VERSIONED_RANGE: &[&str] = &["fork", "offset", "length", "version"];
const KEYS: &[&str] = &["after", "before", "prefix", "limit", "values"];

/// Returns an object and the transaction on it.
pub fn transaction(node: Node) -> Result<(ObjectId, Transaction), Wrong> {
    let line = node.line();
    let mut fields = node.fields(&["object", "guards", "reads", "writes"])?;
    let object = fields.required("object", named(ObjectId::new))?;
    // Each is checked alone, too, so that what is beyond a limit is said with its place.
    let guards = fields.list("guards", |node| {
        checked(node, guard, |guard| Transaction { guards: vec![guard], ..Transaction::default() })
    })?;
    let reads = fields.list("reads", |node| {
        checked(node, read, |read| Transaction { reads: vec![read], ..Transaction::default() })
    })?;
    let writes = fields.list("writes", |node| {
        checked(node, write, |write| Transaction { writes: vec![write], ..Transaction::default() })
    })?;
    let transaction = Transaction { guards, reads, writes };
    valid(line, &transaction)?;
    Ok((object, transaction))
}

fn checked<T: Clone>(
    node: Node,
    read: impl Fn(Node) -> Result<T, Wrong>,
    alone: impl Fn(T) -> Transaction,
) -> Result<T, Wrong> {
    let line = node.line();
    let operation = read(node)?;
    valid(line, &alone(operation.clone()))?;
    Ok(operation)
}

fn valid(line: usize, transaction: &Transaction) -> Result<(), Wrong> {
    transaction.validate().map_err(|error| Wrong::new(line, format!("cannot be applied: {}", error.message)))
}

fn guard(node: Node) -> Result<Guard, Wrong> {
    let operation = node.operation()?;
    match operation.name() {
        "exists" => operation.alone(Guard::Exists),
        "absent" => operation.alone(Guard::Absent),
        "region" => operation.fields(VERSIONED_RANGE, |fields| {
            let (fork, range, version) = versioned_range(fields)?;
            Ok(Guard::Region { fork, range, version })
        }),
        "proposal" => operation.fields(VERSIONED_RANGE, |fields| {
            let (fork, range, version) = versioned_range(fields)?;
            Ok(Guard::Proposal { fork, range, version })
        }),
        "key" => operation.fields(&["key", "check"], |fields| {
            let key = fields.required("key", named(Key::new))?;
            Ok(Guard::Key { key, check: fields.required("check", check)? })
        }),
        "attribute" => operation.fields(&["name", "check"], |fields| {
            let name = fields.required("name", named(Key::new))?;
            Ok(Guard::Attribute { name, check: fields.required("check", check)? })
        }),
        "version" => Ok(Guard::Version { version: operation.with(Node::number)? }),
        "key_version" => operation.fields(&["key", "version"], |fields| {
            let key = fields.required("key", named(Key::new))?;
            Ok(Guard::KeyVersion { key, version: fields.required("version", Node::number)? })
        }),
        "size" => operation.fields(&["fork", "size"], |fields| {
            let fork = fields.optional("fork", named(Fork::new))?.unwrap_or_default();
            Ok(Guard::Size { fork, size: fields.required("size", Node::number)? })
        }),
        "fence" => Ok(Guard::Fence { token: operation.with(Node::number)? }),
        _ => Err(operation.unknown(GUARDS)),
    }
}

fn check(node: Node) -> Result<Check, Wrong> {
    let operation = node.operation()?;
    match operation.name() {
        "present" => operation.alone(Check::Present),
        "absent" => operation.alone(Check::Absent),
        "equal" => operation.with(Node::data).map(Check::Equal),
        "not_equal" => operation.with(Node::data).map(Check::NotEqual),
        "less" => operation.with(Node::data).map(Check::Less),
        "less_or_equal" => operation.with(Node::data).map(Check::LessOrEqual),
        "greater" => operation.with(Node::data).map(Check::Greater),
        "greater_or_equal" => operation.with(Node::data).map(Check::GreaterOrEqual),
        _ => Err(operation.unknown(CHECKS)),
    }
}

fn read(node: Node) -> Result<ReadOp, Wrong> {
    let operation = node.operation()?;
    match operation.name() {
        "range" => operation.fields(RANGE, |fields| {
            let (fork, range) = range(fields, named(Fork::new))?;
            Ok(ReadOp::Range { fork, range, intent: Intent::Look })
        }),
        "extents" => operation.fields(RANGE, |fields| {
            let (fork, range) = range(fields, named(Fork::new))?;
            Ok(ReadOp::Extents { fork, range })
        }),
        "stat" => operation.alone(ReadOp::Stat),
        "forks" => operation.fields(&["after", "limit"], |fields| {
            let after = fields.optional("after", |node| node.nullable(named(Fork::new)))?.flatten();
            Ok(ReadOp::Forks { after, limit: page(fields)? })
        }),
        "key" => Ok(ReadOp::Key { key: operation.with(named(Key::new))? }),
        "keys" => operation.fields(KEYS, |fields| {
            let (range, limit, values) = keys(fields)?;
            Ok(ReadOp::Keys { range, limit, values })
        }),
        "attribute" => Ok(ReadOp::Attribute { name: operation.with(named(Key::new))? }),
        "attributes" => operation.alone(ReadOp::Attributes),
        "versioned_key" => Ok(ReadOp::versioned_key(operation.with(named(Key::new))?)),
        "versioned_keys" => operation.fields(KEYS, |fields| {
            let (range, limit, values) = keys(fields)?;
            Ok(ReadOp::VersionedKeys { range, limit, values })
        }),
        "fences" => operation.alone(ReadOp::Fences),
        _ => Err(operation.unknown(READS)),
    }
}

fn write(node: Node) -> Result<WriteOp, Wrong> {
    let operation = node.operation()?;
    match operation.name() {
        "create" => operation.alone(WriteOp::Create),
        "write" => operation.fields(&["fork", "offset", "data"], |fields| {
            let fork = fields.optional("fork", own_fork)?.unwrap_or_default();
            let offset = fields.optional("offset", Node::number)?.unwrap_or(0);
            Ok(WriteOp::Extents { fork, extents: vec![(offset, fields.required("data", Node::data)?)] })
        }),
        "append" => operation.fields(&["fork", "data"], |fields| {
            let fork = fields.optional("fork", own_fork)?.unwrap_or_default();
            Ok(WriteOp::Append { fork, data: fields.required("data", Node::data)? })
        }),
        "zero" => operation.fields(RANGE, |fields| {
            let (fork, range) = range(fields, own_fork)?;
            Ok(WriteOp::Zero { fork, range })
        }),
        "truncate" => operation.fields(&["fork", "size"], |fields| {
            let fork = fields.optional("fork", own_fork)?.unwrap_or_default();
            Ok(WriteOp::Truncate { fork, size: fields.required("size", Node::number)? })
        }),
        "remove_fork" => Ok(WriteOp::RemoveFork { fork: operation.with(own_fork)? }),
        "replace_fork" => operation.fields(&["fork", "from"], |fields| {
            let fork = fields.optional("fork", own_fork)?.unwrap_or_default();
            Ok(WriteOp::ReplaceFork { fork, from: fields.required("from", own_fork)? })
        }),
        "set_key" => operation.fields(&["key", "value"], |fields| {
            let key = fields.required("key", named(Key::new))?;
            Ok(WriteOp::SetKey { key, value: fields.required("value", Node::data)? })
        }),
        "remove_key" => Ok(WriteOp::RemoveKey { key: operation.with(named(Key::new))? }),
        "set_attribute" => operation.fields(&["name", "value"], |fields| {
            let name = fields.required("name", named(Key::new))?;
            Ok(WriteOp::SetAttribute { name, value: fields.required("value", Node::data)? })
        }),
        "remove_attribute" => Ok(WriteOp::RemoveAttribute { name: operation.with(named(Key::new))? }),
        "raise_fence" => Ok(WriteOp::RaiseFence { token: operation.with(Node::number)? }),
        "fence_session" => Ok(WriteOp::FenceSession { session: operation.with(Node::number)? }),
        "remove" => operation.alone(WriteOp::Remove),
        _ => Err(operation.unknown(WRITES)),
    }
}

/// Returns a reader of names with the escapes that commands print.
fn named<T>(make: impl Fn(Vec<u8>) -> Result<T, nacre::Error>) -> impl Fn(Node) -> Result<T, Wrong> {
    move |node| {
        let line = node.line();
        let wrong = |why: String| Wrong::new(line, format!("cannot be a name: {why}"));
        let bytes = unescape(node.text()?.as_bytes()).map_err(wrong)?;
        make(bytes).map_err(|error| wrong(error.message))
    }
}

/// Reads the name of a fork to be written.
fn own_fork(node: Node) -> Result<Fork, Wrong> {
    let line = node.line();
    let fork = named(Fork::new)(node)?;
    match stage::is_reserved(&fork) {
        true => {
            let reserved = stage::RESERVED;
            let why = format!("must not begin with \"{reserved}\": such names of forks are reserved");
            Err(Wrong::new(line, why))
        }
        false => Ok(fork),
    }
}

fn range(
    fields: &mut Fields,
    fork: impl FnOnce(Node) -> Result<Fork, Wrong>,
) -> Result<(Fork, ByteRange), Wrong> {
    let fork = fields.optional("fork", fork)?.unwrap_or_default();
    let offset = fields.optional("offset", Node::number)?.unwrap_or(0);
    let length = fields.optional("length", |node| node.nullable(Node::number))?.flatten();
    let rest = ByteRange::ALL.end().saturating_sub(offset);
    Ok((fork, ByteRange::new(offset, length.unwrap_or(rest))))
}

fn versioned_range(fields: &mut Fields) -> Result<(Fork, ByteRange, u64), Wrong> {
    let (fork, range) = range(fields, named(Fork::new))?;
    Ok((fork, range, fields.required("version", Node::number)?))
}

fn keys(fields: &mut Fields) -> Result<(KeyRange, u32, bool), Wrong> {
    let range = KeyRange {
        after: fields.optional("after", |node| node.nullable(Node::data))?.flatten(),
        before: fields.optional("before", |node| node.nullable(Node::data))?.flatten(),
        prefix: fields.optional("prefix", Node::data)?.unwrap_or_default(),
    };
    Ok((range, page(fields)?, fields.optional("values", Node::bool)?.unwrap_or(true)))
}

/// Reads the most entries of a page.
fn page(fields: &mut Fields) -> Result<u32, Wrong> {
    let limit = fields.optional("limit", |node| node.whole(u32::MAX))?;
    Ok(limit.unwrap_or(limit::PAGE_ENTRIES_MAX as u32))
}

#[cfg(test)]
mod tests {
    use super::super::node::{Nodes, Unreadable};
    use super::*;

    /// Returns what is said of a text that is no transaction.
    #[track_caller]
    fn said(text: &str) -> String {
        let source = std::io::Cursor::new(text.as_bytes().to_vec());
        match Nodes::new(Box::new(source)).read() {
            Ok(node) => transaction(node.expect("there is a text")).unwrap_err().to_string(),
            Err(Unreadable::Text(why)) => why,
            Err(Unreadable::Io(error)) => panic!("{error}"),
        }
    }

    /// Returns what is said of a list of operations.
    #[track_caller]
    fn said_of(list: &str, operations: &str) -> String {
        said(&format!("{{\"object\": \"a\",\n\"{list}\":\n[{operations}]}}"))
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_what_is_expected() {
        for (text, expected) in [
            (
                "5",
                "it must be an object with \"object\", \"guards\", \"reads\", \"writes\", but is 5 (line 1)",
            ),
            (
                "\n[]",
                "it must be an object with \"object\", \"guards\", \"reads\", \"writes\", but is a list (line 2)",
            ),
            (
                "{}",
                "it must have \"object\"; its fields are \"object\", \"guards\", \"reads\", \"writes\" (line 1)",
            ),
            ("{\"object\": 5}", "object must be a text, but is 5 (line 1)"),
            (
                "{\"object\": \"\"}",
                "object cannot be a name: object id is 0 bytes long; it must be 1 to 255 bytes (line 1)",
            ),
            (
                "{\"object\": \"a\\\\q\"}",
                "object cannot be a name: the \\ in \"a\\q\" begins neither \\xNN nor \\\\; write \\\\ for itself (line 1)",
            ),
            ("{\"object\": \"a\",\n\"object\": \"b\"}", "it has \"object\" twice (line 2)"),
            (
                "{\"object\": \"a\",\n\"write\": []}",
                "it has \"write\", which is none of its fields: \"object\", \"guards\", \"reads\", \"writes\" (line 2)",
            ),
            ("{\"object\": \"a\", \"writes\": null}", "writes must be a list, but is null (line 1)"),
            ("{", "it ends too early, at line 1, column 1: a bracket or a quotation mark is not closed"),
            ("{\"object\" \"a\"}", "it is not JSON from line 1, column 11 on"),
        ] {
            assert_eq!(said(text), expected);
        }
        for (list, operations, expected) in [
            (
                "guards",
                "7",
                "guards[0] must be \"NAME\" or {\"NAME\": …} with the name of an operation, but is 7 (line 3)",
            ),
            (
                "guards",
                "\"exists\", {}",
                "guards[1] must have the name of an operation, but is empty (line 3)",
            ),
            (
                "guards",
                "\"exist\"",
                "guards[0] is \"exist\", which is none of \"exists\", \"absent\", \"region\", \"proposal\", \"key\", \"attribute\", \
                 \"version\", \"key_version\", \"size\", \"fence\" (line 3)",
            ),
            (
                "guards",
                "\"version\"",
                "guards[0] must be {\"version\": …}, but is \"version\" alone (line 3)",
            ),
            (
                "guards",
                "{\"version\": -1}",
                "guards[0].version must be a whole number from 0 to 18446744073709551615, but is -1 (line 3)",
            ),
            (
                "guards",
                "{\"region\": {}}",
                "guards[0].region must have \"version\"; its fields are \"fork\", \"offset\", \"length\", \"version\" (line 3)",
            ),
            (
                "guards",
                "{\"key\": {\"key\": \"k\", \"check\": {\"equals\": \"v\"}}}",
                "guards[0].key.check is \"equals\", which is none of \"present\", \"absent\", \"equal\", \"not_equal\", \"less\", \
                 \"less_or_equal\", \"greater\", \"greater_or_equal\" (line 3)",
            ),
            (
                "guards",
                "{\"key\": {\"key\": \"k\", \"check\": {\"equal\": 5}}}",
                "guards[0].key.check.equal must be a text or {\"base64\": \"…\"}, but is 5 (line 3)",
            ),
            (
                "reads",
                "{\"stat\": {}}",
                "reads[0] must be \"stat\" alone, but something belongs to it (line 3)",
            ),
            (
                "reads",
                "{\"forks\": {\"limit\": 4294967296}}",
                "reads[0].forks.limit must be a whole number from 0 to 4294967295, but is 4294967296 (line 3)",
            ),
            (
                "reads",
                "{\"keys\": {\"values\": \"yes\"}}",
                "reads[0].keys.values must be true or false, but is \"yes\" (line 3)",
            ),
            (
                "reads",
                "{\"range\": [\"\", 0, 5]}",
                "reads[0].range must be an object with \"fork\", \"offset\", \"length\", but is a list (line 3)",
            ),
            (
                "writes",
                "\"create\",\n{\"write\":\n{\"data\": \"x\", \"ofset\": 1}}",
                "writes[1].write has \"ofset\", which is none of its fields: \"fork\", \"offset\", \"data\" (line 5)",
            ),
            (
                "writes",
                "{\"write\": {\"data\": \"x\", \"offset\": 1.0}}",
                "writes[0].write.offset must be a whole number from 0 to 18446744073709551615, but is 1.0 (line 3)",
            ),
            (
                "writes",
                "{\"set_key\": {\"key\": \"k\"}}",
                "writes[0].set_key must have \"value\"; its fields are \"key\", \"value\" (line 3)",
            ),
            (
                "writes",
                "{\"set_key\": {\"key\": \"k\", \"value\": {\"base64\": \"?\"}}}",
                "writes[0].set_key.value.base64 is not base64, in the standard alphabet and with its padding (line 3)",
            ),
            ("writes", "{\"write\": {\"data\": {}}}", "writes[0].write.data must have \"base64\" (line 3)"),
            (
                "writes",
                "{\"raise_fence\": 1, \"remove\": null}",
                "writes[0] must be one operation, but has 2 (line 3)",
            ),
            (
                "writes",
                "{\"remove_fork\": \".nacre.x\"}",
                "writes[0].remove_fork must not begin with \".nacre.\": such names of forks are reserved (line 3)",
            ),
            (
                "writes",
                "\"create\", {\"truncate\": {\"size\": 18446744073709551615}}",
                "writes[1] cannot be applied: range 0+18446744073709551615 ends past the greatest offset, 9223372036854775807 (line 3)",
            ),
        ] {
            assert_eq!(said_of(list, operations), expected);
        }
    }

    #[test]
    fn what_is_said_is_bounded_and_commands_no_terminal() {
        let long = "x".repeat(1 << 20);
        for text in [
            format!("\"\\u001b[2J{long}\""),
            format!("{{\"object\": \"a\", \"\\u001b[2J{long}\": 1}}"),
            format!("{{\"object\": \"\\u001b[2J\\\\q{long}\"}}"),
            format!("{{\"object\": \"a\", \"writes\": [\"\\u001b[2J{long}\"]}}"),
            format!("{{\"object\": \"a\", \"writes\": [{{\"\\u001b[2J{long}\": 1}}]}}"),
            format!(
                "{{\"object\": \"a\", \"writes\": [{{\"truncate\": {{\"size\": \"\\u001b[2J{long}\"}}}}]}}"
            ),
        ] {
            let said = said(&text);
            assert!(said.len() < 600 && said.contains("\\x1b[2J"), "{said}");
        }
        assert!(said(&format!("[{}]", "0,".repeat(1 << 20))).starts_with("it has more than 65536 values"));
        assert!(said(&"[".repeat(1 << 20)).starts_with("its brackets are nested more deeply"));
        assert!(said("{\"object\": 1e999}").starts_with("the number that ends at line 1, column 1"));
    }

    #[test]
    fn every_operation_that_is_listed_is_known() {
        // Each is refused for another reason than its name.
        for (list, known) in [("guards", GUARDS), ("reads", READS), ("writes", WRITES)] {
            for name in known {
                let said = said_of(list, &format!("{{\"{name}\": []}}"));
                assert!(!said.contains("none of"), "{said}");
            }
        }
        for name in CHECKS {
            let check = format!("{{\"key\": {{\"key\": \"k\", \"check\": {{\"{name}\": []}}}}}}");
            assert!(!said_of("guards", &check).contains("none of"), "{name}");
        }
    }

    #[test]
    fn several_transactions_follow_each_other_and_lines_are_counted_over_all() {
        let text = "{\"object\": \"a\", \"writes\": [\"create\"]}{\"object\": \"b\"}\n\n {\"object\":\n5}";
        let mut nodes = Nodes::new(Box::new(std::io::Cursor::new(text)));
        let first = transaction(nodes.read().unwrap().unwrap()).unwrap();
        assert_eq!(first.1.writes, [WriteOp::Create]);
        assert_eq!(transaction(nodes.read().unwrap().unwrap()).unwrap().0, ObjectId::try_from("b").unwrap());
        let third = nodes.read().unwrap().unwrap();
        assert_eq!(third.line(), 3);
        assert_eq!(transaction(third).unwrap_err().to_string(), "object must be a text, but is 5 (line 3)");
        assert!(nodes.read().unwrap().is_none());
    }
}
