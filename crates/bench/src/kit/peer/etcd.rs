//! etcd: transactions that compare the revision of a key's last change, and locks.
//!
//! The few messages that the studies need are declared here by hand, with their field numbers, from etcd's published
//! protocol (`etcdserverpb` and `v3lockpb`, version 3), so that building Nacre needs no protocol compiler.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::{Peer, find_program, free_port, version_of};
use crate::BenchError;

const NAME: &str = "etcd";
const PROGRAM: &str = "etcd";
const PACKAGE: &str = "etcd-server";

/// Starts an etcd server with one member and the default settings, except for the quota of its database, which a study
/// of many fresh blocks would fill.
pub(crate) async fn start(parent: Option<&Path>) -> Result<Peer, BenchError> {
    let mut members = start_cluster(1, parent).await?;
    members.pop().ok_or_else(|| BenchError::peer(NAME, "has no member"))
}

/// Starts a number of servers as the members of one cluster, with the settings of [`start`], and waits until each of them answers.
pub(crate) async fn start_cluster(members: usize, parent: Option<&Path>) -> Result<Vec<Peer>, BenchError> {
    let program = find_program(PROGRAM, PACKAGE)?;
    let urls = (0..members).map(|_| Ok::<_, BenchError>(format!("http://127.0.0.1:{}", free_port()?)));
    let urls = urls.collect::<Result<Vec<String>, BenchError>>()?;
    let cluster: Vec<String> =
        urls.iter().enumerate().map(|(member, url)| format!("m{member}={url}")).collect();
    let mut started = Vec::with_capacity(members);
    for (member, peer_url) in urls.iter().enumerate() {
        started.push(Peer::start(NAME, parent, |folder, port| {
            let client_url = format!("http://127.0.0.1:{port}");
            let mut command = Command::new(&program);
            command.args([
                "--name",
                &format!("m{member}"),
                "--quota-backend-bytes",
                "8589934592",
                "--data-dir",
            ]);
            command.arg(folder.join("data"));
            command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
            command.args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]);
            command.args(["--initial-cluster", &cluster.join(",")]);
            Ok(command)
        })?);
    }
    let mut answering = Vec::with_capacity(members);
    for peer in started {
        answering.push(peer.wait_until(answers).await?);
    }
    Ok(answering)
}

/// Returns whether a server answers a read, which takes a leader.
async fn answers(address: String) -> bool {
    match Client::connect(&address).await {
        Ok(mut client) => client.get(Bytes::from_static(b"ready")).await.is_ok(),
        Err(_) => false,
    }
}

/// Returns the version that the server reports.
pub(crate) fn version() -> Option<String> {
    version_of(&find_program(PROGRAM, PACKAGE).ok()?, &["--version"])
}

/// A client on a connection that its clones share.
#[derive(Clone)]
pub(crate) struct Client {
    grpc: Grpc<Channel>,
}

/// A value, and the revision of its last change; 0 where there is no value.
#[derive(Default)]
pub(crate) struct Revised {
    pub(crate) value: Bytes,
    pub(crate) revision: i64,
}

impl Client {
    /// Connects to a server.
    pub(crate) async fn connect(address: &str) -> Result<Self, BenchError> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| BenchError::peer(NAME, error))?
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|error| BenchError::peer(NAME, error))?;
        Ok(Self { grpc: Grpc::new(channel).max_decoding_message_size(64 << 20) })
    }

    /// Reads a value.
    pub(crate) async fn get(&mut self, key: Bytes) -> Result<Revised, BenchError> {
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
        let response: RangeResponse = self.call(path, RangeRequest { key }).await?;
        Ok(response.revised())
    }

    /// Writes a value unless it changed since `revision`; if it did, returns the current one.
    pub(crate) async fn put_if_unchanged(
        &mut self,
        key: Bytes,
        value: Bytes,
        revision: i64,
    ) -> Result<Option<Revised>, BenchError> {
        let compare =
            Compare { result: 0, target: COMPARE_MOD, key: key.clone(), mod_revision: Some(revision) };
        let put = RequestOp { range: None, put: Some(PutRequest { key: key.clone(), value }) };
        let range = RequestOp { range: Some(RangeRequest { key }), put: None };
        let request = TxnRequest { compare: vec![compare], success: vec![put], failure: vec![range] };
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Txn");
        let response: TxnResponse = self.call(path, request).await?;
        if response.succeeded {
            return Ok(None);
        }
        let found = response.responses.into_iter().next().and_then(|answer| answer.range);
        Ok(Some(found.unwrap_or_default().revised()))
    }

    /// Writes a value, and returns the store's revision, which each change counts up.
    pub(crate) async fn put(&mut self, key: Bytes, value: Bytes) -> Result<u64, BenchError> {
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
        let response: PutResponse = self.call(path, PutRequest { key, value }).await?;
        Ok(response.header.map_or(0, |header| header.revision as u64))
    }

    /// Returns whether the server is the leader of its cluster.
    pub(crate) async fn is_leader(&mut self) -> Result<bool, BenchError> {
        let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Status");
        let response: StatusResponse = self.call(path, StatusRequest {}).await?;
        Ok(response.header.is_some_and(|header| header.member == response.leader))
    }

    /// Makes a lease of some seconds, which is not renewed.
    pub(crate) async fn lease(&mut self, seconds: i64) -> Result<i64, BenchError> {
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseGrant");
        let response: LeaseResponse = self.call(path, LeaseRequest { seconds }).await?;
        Ok(response.id)
    }

    /// Takes the lock of a name under a lease, by etcd's own lock service, and returns the key that stands for it.
    pub(crate) async fn lock(&mut self, name: Bytes, lease: i64) -> Result<Bytes, BenchError> {
        let path = PathAndQuery::from_static("/v3lockpb.Lock/Lock");
        let response: LockResponse = self.call(path, LockRequest { name, lease }).await?;
        Ok(response.key)
    }

    /// Releases the lock that a key stands for.
    pub(crate) async fn unlock(&mut self, key: Bytes) -> Result<(), BenchError> {
        let path = PathAndQuery::from_static("/v3lockpb.Lock/Unlock");
        let _: UnlockResponse = self.call(path, UnlockRequest { key }).await?;
        Ok(())
    }

    async fn call<Q, A>(&mut self, path: PathAndQuery, request: Q) -> Result<A, BenchError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.grpc.ready().await.map_err(|error| BenchError::peer(NAME, error))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.grpc.unary(tonic::Request::new(request), path, codec).await;
        Ok(answer.map_err(|status| BenchError::peer(NAME, status))?.into_inner())
    }
}

/// Compares the revision of the last change (`CompareTarget.MOD`).
const COMPARE_MOD: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

impl RangeResponse {
    fn revised(self) -> Revised {
        let first = self.kvs.into_iter().next();
        first.map(|kv| Revised { value: kv.value, revision: kv.mod_revision }).unwrap_or_default()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    key: Bytes,
    #[prost(int64, optional, tag = "6")]
    mod_revision: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestOp {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeRequest>,
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseRequest {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "bytes", tag = "2")]
    key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockResponse {}
