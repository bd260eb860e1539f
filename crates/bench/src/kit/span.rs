//! Spans of positions that clients got, kept to prove that no position was given out twice.

use serde::{Deserialize, Serialize};

/// The maximum number of spans that a client keeps.
const SPANS_MAX: usize = 200_000;

/// Spans of positions, each from its first one to before its end; not all of them if there are many.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Adds positions. Those that follow upon the last ones join them.
    pub(crate) fn add(&mut self, first: u64, end: u64) {
        let has_space = self.0.len() < SPANS_MAX;
        match self.0.last_mut() {
            Some(last) if last.1 == first => last.1 = end,
            _ if has_space => self.0.push((first, end)),
            _ => {}
        }
    }

    /// Returns the spans in the order in which they were added.
    pub(crate) fn list(&self) -> &[(u64, u64)] {
        &self.0
    }
}

/// Returns two spans with a position in common, if there are any.
pub(crate) fn overlap<'a>(clients: impl IntoIterator<Item = &'a Spans>) -> Option<[(u64, u64); 2]> {
    let mut spans: Vec<(u64, u64)> =
        clients.into_iter().flat_map(|spans| spans.list().iter().copied()).collect();
    spans.sort_unstable();
    spans.windows(2).find(|pair| pair[0].1 > pair[1].0).map(|pair| [pair[0], pair[1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_that_two_clients_have_is_found() {
        let (mut one, mut other) = (Spans::default(), Spans::default());
        one.add(0, 1);
        one.add(1, 10);
        one.add(20, 30);
        other.add(10, 20);
        assert_eq!(one.list(), [(0, 10), (20, 30)]);
        assert_eq!(overlap([&one, &other]), None);
        other.add(29, 31);
        assert_eq!(overlap([&one, &other]), Some([(20, 30), (29, 31)]));
    }
}
