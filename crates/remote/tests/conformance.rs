//! The conformance suite, through a server, over both kinds of socket.

mod support;

use nacre_object::testkit::conformance::{self, Effort};
use nacre_remote::{RemoteOptions, RemoteStore};
use nacre_rpc::{Address, ServeOptions, Server};

fn serve(address: Address) -> Server {
    let options =
        ServeOptions { listen: vec![address], open: true, services: support::memory(), ..Default::default() };
    Server::start(options).unwrap()
}

fn remote(servers: &[&Server], options: RemoteOptions) -> RemoteStore {
    let addresses: Vec<Address> = servers.iter().flat_map(|server| server.addresses()).cloned().collect();
    RemoteStore::new(&addresses, options).unwrap()
}

#[test]
fn a_remote_store_conforms_over_tcp() {
    let server = serve("127.0.0.1:0".parse().unwrap());
    conformance::run(&remote(&[&server], support::patient()), "tcp");
    server.stop();
}

#[test]
fn a_remote_store_conforms_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(Address::Unix(folder.path().join("socket")));
    conformance::run(&remote(&[&server], support::patient()), "unix");
    server.stop();
}

#[test]
fn several_clients_of_one_server_conform() {
    let server = serve("127.0.0.1:0".parse().unwrap());
    let clients = [(); 3].map(|()| remote(&[&server], support::patient()));
    conformance::run_connections(&[&clients[0], &clients[1], &clients[2]], "clients", Effort::default());
    server.stop();
}

#[test]
fn several_servers_with_several_connections_conform() {
    let folder = tempfile::tempdir().unwrap();
    let servers = support::serve_together(folder.path(), &["a", "b", "c"], 1);
    let servers_by_reference: Vec<&Server> = servers.iter().collect();
    let options = RemoteOptions { connections: 2, ..support::patient() };
    conformance::run(&remote(&servers_by_reference, options), "several");
    servers.into_iter().for_each(Server::stop);
}
