//! Logs on a store in memory: what a user of the library notices.

mod suite {
    pub mod append;
    pub mod class;
    pub mod directory;
    pub mod examples;
    pub mod follow;
    #[path = "../../examples/consumer_group/group.rs"]
    pub mod group;
    pub mod histories;
    pub mod kit;
    pub mod recovery;
    #[path = "../../examples/replicated_map/replica.rs"]
    pub mod replica;
    pub mod sequencer;
    pub mod turns;
}
