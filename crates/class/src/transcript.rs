//! Transcripts: calls and what comes of them, written as comments into the text of a class.
//!
//! ```lua
//! --> add 5
//! --= 5
//! --> get ["packed", 1]
//! --! ENOENT
//! ```
//!
//! `-->` calls a method on an object that is empty at first. What follows it is the input: text, or a JSON array, which is
//! packed. `--=` is a line of the expected output, or a JSON array that it must unpack to; without one, the output must be
//! empty. `--!` expects a failure, by the name or the number of its error. A class's name before the method, as in
//! `--> other.method`, calls another class that was given.

use bytes::Bytes;
use nacre_object::ObjectId;
use serde_json::Value;

use crate::classes::Classes;
use crate::error::CallError;
use crate::packed;
use crate::runtime::Request;
use crate::{errno, errno::Errno};

/// One call of a transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The line, from 1.
    pub line: usize,
    /// The class, if it is not the transcript's own.
    pub class: Option<String>,
    /// The method.
    pub method: String,
    /// The input.
    pub input: Bytes,
    /// The expected outcome.
    pub expected: Expected,
}

/// The expected end of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// Success with this output.
    Output(Vec<u8>),
    /// Success with an output that unpacks to these values.
    Values(Vec<Value>),
    /// Failure with this error number.
    Failure(Errno),
}

/// A call that ended otherwise than expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The line of the call.
    pub line: usize,
    /// The call.
    pub call: String,
    /// A sentence on what was expected, and what came.
    pub text: String,
}

/// Reads the transcript in a text.
///
/// # Errors
///
/// A sentence with the line that is wrong.
pub fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("--> ") {
            steps.push(step(line_number, rest)?);
            continue;
        }
        let (is_output, rest) = match (line.strip_prefix("--="), line.strip_prefix("--!")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        let Some(step) = steps.last_mut() else {
            return Err(format!("line {line_number}: an expectation without a call before it"));
        };
        expect(step, is_output, rest).map_err(|text| format!("line {line_number}: {text}"))?;
    }
    Ok(steps)
}

fn step(line: usize, rest: &str) -> Result<Step, String> {
    let (name, input) = rest.split_once(' ').unwrap_or((rest, ""));
    let (class, method) = match name.split_once('.') {
        Some((class, method)) => (Some(class.to_owned()), method),
        None => (None, name),
    };
    let input = match values(input) {
        Some(values) => packed::pack(&values).map_err(|text| format!("line {line}: {text}"))?.into(),
        None => Bytes::copy_from_slice(input.as_bytes()),
    };
    let expected = Expected::Output(Vec::new());
    Ok(Step { line, class, method: method.to_owned(), input, expected })
}

/// Returns the elements of a JSON array.
pub fn values(text: &str) -> Option<Vec<Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Array(values)) if text.starts_with('[') => Some(values),
        _ => None,
    }
}

fn expect(step: &mut Step, is_output: bool, rest: &str) -> Result<(), String> {
    if !is_output {
        let known = errno::ALL.iter().find(|(name, ..)| *name == rest).map(|(_, number, _)| *number);
        let number = known.or_else(|| rest.parse().ok()).ok_or(format!("\"{rest}\" is not an error"))?;
        step.expected = Expected::Failure(number);
        return Ok(());
    }
    match &mut step.expected {
        Expected::Output(output) => match values(rest) {
            Some(values) if output.is_empty() => step.expected = Expected::Values(values),
            _ => {
                if !output.is_empty() {
                    output.push(b'\n');
                }
                output.extend_from_slice(rest.as_bytes());
            }
        },
        _ => return Err("an output after something else is expected already".to_owned()),
    }
    Ok(())
}

/// Makes the calls of a transcript, and returns those that ended otherwise than expected.
///
/// # Errors
///
/// Those of the store; the failures of methods are differences.
pub async fn run(
    classes: &Classes,
    class: &str,
    steps: &[Step],
    object: &ObjectId,
) -> Result<Vec<Difference>, nacre_object::StoreError> {
    let mut differences = Vec::new();
    for step in steps {
        let class = step.class.as_deref().unwrap_or(class);
        let request = Request::new(object, class, &step.method).input(step.input.clone());
        let found = match classes.call(&request).await {
            Err(CallError::Store(error)) => return Err(error),
            found => found,
        };
        let text = match (&step.expected, &found) {
            (Expected::Failure(number), Err(error)) if error.errno() == *number => continue,
            (Expected::Failure(number), Err(error)) => {
                format!("expected {}, found: {error}", errno::shown(*number))
            }
            (Expected::Failure(number), Ok(_)) => {
                format!("expected {}, but it succeeded", errno::shown(*number))
            }
            (_, Err(error)) => format!("expected success, found: {error}"),
            (Expected::Output(output), Ok(called)) if called.output == output => continue,
            (Expected::Output(output), Ok(called)) => {
                let shown = String::from_utf8_lossy(output).into_owned();
                format!("expected {shown:?}, found {:?}", String::from_utf8_lossy(&called.output))
            }
            (Expected::Values(values), Ok(called)) => match packed::unpack(&called.output) {
                Ok(found) if found == *values => continue,
                Ok(found) => {
                    format!("expected {}, found {}", Value::from(values.clone()), Value::from(found))
                }
                Err(text) => format!("expected packed values: {text}"),
            },
        };
        differences.push(Difference { line: step.line, call: format!("{class}.{}", step.method), text });
    }
    Ok(differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_with_what_they_expect() {
        let steps =
            parse("x = 1\n--> get a b\n--= one\n--= two\n  --> c.put [1, \"x\"]\n--! ENOENT\n--> n\n")
                .unwrap();
        assert_eq!(steps.len(), 3);
        assert_eq!((steps[0].line, &steps[0].method[..], &steps[0].input[..]), (2, "get", &b"a b"[..]));
        assert_eq!(steps[0].expected, Expected::Output(b"one\ntwo".to_vec()));
        assert_eq!((steps[1].class.as_deref(), &steps[1].input[..]), (Some("c"), &[1, 0xa1, b'x'][..]));
        assert_eq!(steps[1].expected, Expected::Failure(errno::ENOENT));
        assert_eq!(steps[2].expected, Expected::Output(Vec::new()));
        assert!(parse("--= 1").is_err());
        assert!(parse("--> a\n--! ENOSUCH").is_err());
    }
}
