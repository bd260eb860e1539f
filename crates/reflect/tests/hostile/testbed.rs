//! A control plane to attack, and what clients say to it.

use std::net::SocketAddr;

use nacre_reflect::control::{Control, ControlOptions, Counter};
use nacre_reflect::cookie::Secret;
use nacre_reflect::host::{Incoming, Now};
use nacre_reflect::table::{GroupId, GroupOptions, Path};
use nacre_reflect::token::{Grant, Identity, Rights, Scope, Token, TokenKey};
use nacre_reflect::wire::{Answer, Heartbeat, Join, Joined, Reason, Request};
use nacre_rpc::ClusterKey;

pub const GROUP: GroupId = GroupId { port: 7400, id: 0 };

/// A control plane on a clock that stands still unless it is moved.
pub struct Testbed {
    pub control: Control,
    pub now_ms: u64,
}

impl Testbed {
    pub fn new(options: ControlOptions) -> Self {
        let mut control =
            Control::new(ControlOptions { own: vec![local()], ..options }, Secret::new([3; 32]));
        control.set_group(GROUP, GroupOptions::default());
        Testbed { control, now_ms: 50_000 }
    }

    pub fn now(&self) -> Now {
        Now { ms: self.now_ms, ns: self.now_ms * 1_000_000, unix_s: 1_700_000_000 + self.now_ms / 1000 }
    }

    /// Sends a request from an address, and returns the answers to it.
    pub fn say(&mut self, from: SocketAddr, request: &[u8]) -> Vec<Vec<u8>> {
        self.say_to(local(), from, request)
    }

    /// The same to another address of the reflector.
    pub fn say_to(&mut self, local: SocketAddr, from: SocketAddr, request: &[u8]) -> Vec<Vec<u8>> {
        let path = Path { device: 1, local };
        self.control.handle(self.now(), Incoming { path, from, bytes: request });
        self.sent().into_iter().filter(|(to, _)| *to == from).map(|(_, bytes)| bytes).collect()
    }

    pub fn sent(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::iter::from_fn(|| self.control.next_outgoing()).map(|out| (out.to, out.bytes)).collect()
    }

    pub fn join_bytes(&mut self, from: SocketAddr, group: u32, nonce: u64, token: &[u8]) -> Vec<u8> {
        let join =
            Join { group, echo: false, keeps_state: true, nonce, cookie: [0; 16], leaves: None, token };
        let answers = self.say(from, &Request::Join(join).encode());
        let Some(Ok(Answer::Challenge { cookie, .. })) = answers.first().map(|bytes| Answer::decode(bytes))
        else {
            panic!("no challenge but {answers:?}");
        };
        Request::Join(Join { cookie, ..join }).encode()
    }

    pub fn join(&mut self, from: SocketAddr, group: u32, nonce: u64, token: &[u8]) -> Result<Joined, Reason> {
        let request = self.join_bytes(from, group, nonce, token);
        let answers = self.say(from, &request);
        match Answer::decode(&answers[0]).unwrap() {
            Answer::Joined(joined) => Ok(joined),
            Answer::Refused { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Advances the time in small steps, as a server would.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            self.control.tick(self.now());
        }
    }

    pub fn is_member(&self, from: SocketAddr) -> bool {
        self.control.table().member_of(GROUP, from).is_some()
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.control.counters().get(counter)
    }
}

pub fn local() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], 7400))
}

pub fn home(number: u32) -> SocketAddr {
    let [_, b, c, d] = number.to_be_bytes();
    SocketAddr::from(([203, b, c, d], 40_000))
}

pub fn beat(session: u64, proof: u64, number: u32) -> Vec<u8> {
    let (client_us, reflector_us, hold_us, state_version) = (1, 0, 0, 0);
    Request::Heartbeat(Heartbeat {
        group: 0,
        number,
        session,
        client_us,
        reflector_us,
        hold_us,
        state_version,
        proof,
    })
    .encode()
}

pub fn decoded(answers: &[Vec<u8>]) -> Vec<Answer<'_>> {
    answers.iter().map(|bytes| Answer::decode(bytes).unwrap()).collect()
}

/// Returns the proof in a pulse.
#[track_caller]
pub fn proof_in(answers: &[Vec<u8>]) -> u64 {
    let answers = decoded(answers);
    let pulse = answers.iter().find_map(|answer| match answer {
        Answer::Pulse(pulse) => Some(pulse.proof),
        _ => None,
    });
    pulse.unwrap_or_else(|| panic!("{answers:?}"))
}

pub fn signed(key: &TokenKey, name: &str, rights: Rights, expires_unix_s: u64) -> Vec<u8> {
    let identity = Some(Identity::of_name(name));
    let grant = Grant { scopes: vec![Scope::Any], rights, identity, expires_unix_s, address: None };
    Token::sign(key, &grant).unwrap().as_bytes().to_vec()
}

/// Returns a testbed whose group asks for tokens, and the key that signs them.
pub fn guarded() -> (Testbed, TokenKey) {
    let key = TokenKey::new(&ClusterKey::from_bytes([9; 32]));
    let mut testbed =
        Testbed::new(ControlOptions { token_keys: vec![key.public()], ..ControlOptions::default() });
    testbed.control.set_group(GROUP, GroupOptions { token: true, ..GroupOptions::default() });
    (testbed, key)
}
