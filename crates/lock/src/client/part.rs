//! The requests into which an operation is cut.

use super::Method;
use crate::message::{RequestNumber, Token};
use crate::table::Acquired;
use crate::{OFFSET_MAX, Pattern, PatternError, Region, Stripe};

/// The maximum number of regions of one list request (section 3.2).
pub const LIST_REGIONS_MAX: usize = 64;

/// The maximum number of requests of one operation: as many as a server takes of one session.
pub const REQUESTS_MAX: usize = 1 << 18;

/// A request of an operation to one server.
#[derive(Clone, Debug)]
pub struct Part {
    /// The server.
    pub server: u32,
    /// The request's number.
    pub number: RequestNumber,
    /// The pattern that the server is told: the bytes of this request and, for a datatype, those of the other servers.
    pub(super) announced: Pattern,
    /// The latest answer of the server.
    pub(super) progress: Acquired,
    pub(super) token: Token,
    /// True if the server knows the pattern.
    pub(super) sent: bool,
    /// The call that is not answered yet.
    pub(super) outstanding: Option<Outstanding>,
    /// The number of calls made.
    pub(crate) serial: u32,
}

/// A call that is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outstanding {
    Acquire { until: Option<u64> },
    ReleaseFrom { offset: u64 },
    Release,
}

impl Part {
    fn new(server: u32, number: RequestNumber, announced: Pattern, first: u64) -> Self {
        Self {
            server,
            number,
            announced,
            progress: Acquired { last: None, next: Some(first) },
            token: Token::default(),
            sent: false,
            outstanding: None,
            serial: 0,
        }
    }

    /// Returns the progress of the request, by the server's latest answer.
    pub fn progress(&self) -> Acquired {
        self.progress
    }

    /// The number of the newest grant.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The offset below which everything is held.
    pub(super) fn below(&self) -> u64 {
        self.progress.next.unwrap_or(OFFSET_MAX)
    }
}

/// Cuts a pattern into the requests to the servers of a stripe, by rising first byte.
pub(super) fn cut(
    pattern: &Pattern,
    method: Method,
    stripe_bytes: u64,
    servers: u32,
    first_number: RequestNumber,
) -> Result<Vec<Part>, PatternError> {
    let mut parts = Vec::new();
    for server in servers_of(pattern, stripe_bytes, servers) {
        let own = pattern.restrict(Stripe { bytes: stripe_bytes, servers, server })?;
        let Some(bounds) = own.bounds() else { continue };
        match method {
            Method::Datatype => parts.push((bounds.offset, server, pattern.clone())),
            Method::Posix => {
                for region in own.regions() {
                    check_requests(parts.len())?;
                    parts.push((region.offset, server, Pattern::pieces(&[region])?));
                }
            }
            Method::List => {
                let mut regions = own.regions().peekable();
                while regions.peek().is_some() {
                    check_requests(parts.len())?;
                    let list: Vec<Region> = regions.by_ref().take(LIST_REGIONS_MAX).collect();
                    parts.push((list[0].offset, server, Pattern::pieces(&list)?));
                }
            }
        }
    }
    parts.sort_unstable_by_key(|(first, ..)| *first);
    let numbered = parts.into_iter().zip(first_number..);
    Ok(numbered
        .map(|((first, server, announced), number)| Part::new(server, number, announced, first))
        .collect())
}

/// Refuses one more request if there are too many already.
fn check_requests(requests: usize) -> Result<(), PatternError> {
    match requests < REQUESTS_MAX {
        true => Ok(()),
        false => Err(PatternError::TooManyRequests { requests_max: REQUESTS_MAX }),
    }
}

/// The servers that may have bytes of a pattern: all, unless it is short.
fn servers_of(pattern: &Pattern, stripe_bytes: u64, servers: u32) -> Vec<u32> {
    let Some(bounds) = pattern.bounds() else { return Vec::new() };
    let (first, last) = (bounds.offset / stripe_bytes, (bounds.end() - 1) / stripe_bytes);
    if last - first >= u64::from(servers) {
        return (0..servers).collect();
    }
    (first..=last).map(|strip| (strip % u64::from(servers)) as u32).collect()
}
