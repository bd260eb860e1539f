//! Counters of the control plane: one table of names, from which the metrics are derived.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A kind of event that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All counters.
            pub const ALL: &[Counter] = &[$(Counter::$name,)*];

            /// Returns the name in metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$name => $text,)*
                }
            }
        }

        /// Counts since the start.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Counters([u64; Counter::ALL.len()]);

        impl Default for Counters {
            fn default() -> Self {
                Counters([0; Counter::ALL.len()])
            }
        }
    };
}

counters! {
    /// Addresses that were asked for a proof.
    Challenged = "challenged";
    /// Members that joined.
    Joined = "joined";
    /// Members that joined again from the same address, with a new session.
    Rejoined = "rejoined";
    /// `JOIN`s of members that had joined already, answered again.
    JoinedAgain = "joined_again";
    /// Members that left of their own accord.
    Left = "left";
    /// Members that were silent for too long.
    Expired = "expired";
    /// Members removed by the operator, or because the reflector was shutting down.
    Removed = "removed";
    /// Heartbeats of members.
    Heartbeats = "heartbeats";
    /// Members whose path to the reflector changed.
    PathChanged = "path_changed";
    /// Locations told to clients that asked.
    Located = "located";
    /// Clients sent to another reflector.
    Redirected = "redirected";
    /// Times that a member was told to move.
    MovesTold = "moves_told";
    /// Relays of a location's datagrams that began, at either side.
    RelayBegun = "relays_begun";
    /// Requests for a relay that the other reflector did not answer in time: members moved without.
    RelayUnanswered = "relays_unanswered";
    /// Relays that ended because the other reflector was silent.
    RelayLost = "relays_lost";
    /// Members' datagrams sent to another reflector.
    RelaySent = "relay_datagrams_sent";
    /// Datagrams taken from another reflector.
    RelayTaken = "relay_datagrams_taken";
    /// Members handed over to another reflector.
    RelayHanded = "relay_members_handed";
    /// Times that a member was asked for a group's state.
    StateAsked = "state_asked";
    /// Members that did not answer, or had no state to give.
    StateUnanswered = "state_unanswered";
    /// Parts of states taken from members.
    StatePartsTaken = "state_parts_taken";
    /// Parts of states given to members.
    StatePartsGiven = "state_parts_given";
    /// States that were equal to the stored one.
    StateUnchanged = "state_unchanged";
    /// States that were stored.
    StateStored = "state_stored";
    /// States that were not stored because a newer one was there.
    StateConflict = "state_conflict";
    /// States that the store failed to keep or to give.
    StateFailed = "state_failed";
    /// Refused without an answer: no message of this protocol, or one that only reflectors send.
    Malformed = "refused_malformed";
    /// Refused without an answer: messages of reflectors that are not signed by one on the same store, or are of no relay.
    RelayForged = "refused_relay";
    /// Refused without an answer: sources that nothing may be sent to.
    Destination = "refused_destination";
    /// Refused without an answer: more unproven requests from one source than are answered.
    SourceBusy = "refused_source_busy";
    /// Refused: a cookie that was forged, of another address, too old, or used before.
    CookieInvalid = "refused_cookie";
    /// Refused: too many joins from one source.
    TooManyJoins = "refused_too_many_joins";
    /// Refused: the group, or the reflector, is full.
    Full = "refused_full";
    /// Refused: no such group.
    UnknownGroup = "refused_unknown_group";
    /// Refused: no such location.
    UnknownLocation = "refused_unknown_location";
    /// Refused: a required token was missing.
    TokenMissing = "refused_token_missing";
    /// Refused: an expired token.
    TokenExpired = "refused_token_expired";
    /// Refused: a token for another group.
    TokenGroup = "refused_token_group";
    /// Refused: a token for another address.
    TokenAddress = "refused_token_address";
    /// Refused: a token that the operator did not sign.
    TokenForged = "refused_token_forged";
    /// Refused: a malformed token.
    TokenMalformed = "refused_token_malformed";
    /// Refused: requests from no member, or with another session.
    NotMember = "refused_not_member";
    /// Refused: members that the operator does not let in.
    Banned = "refused_banned";
    /// Refused: requests of members whose proof of the address is too old.
    Stale = "refused_stale";
    /// Refused: requests of the first version of the protocol.
    Version = "refused_version";
    /// Refused without an answer: repeated heartbeats.
    Replayed = "refused_replayed";
    /// Refused without an answer: more parts of a state than a member may fetch at once.
    StateRate = "refused_state_rate";
    /// Refused without an answer: parts of a state that were not asked for.
    StateUnasked = "refused_state_unasked";
    /// Refused: the reflector is shutting down.
    Closing = "refused_closing";
    /// Answers that were dropped because the queue was full.
    OutgoingFull = "outgoing_full";
    /// Events that were dropped because the queue was full.
    EventsFull = "events_full";
}

impl Counters {
    /// Returns the value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Returns all counters and their values.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|counter| (*counter, self.get(*counter)))
    }

    pub(super) fn add(&mut self, counter: Counter, count: u64) {
        self.0[counter as usize] += count;
    }
}
