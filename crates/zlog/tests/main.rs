//! Logs on a store in memory: what a user of the library notices.

mod suite {
    pub mod class;
    pub mod examples;
    #[path = "../../examples/consumer_group/group.rs"]
    pub mod group;
    pub mod histories;
    pub mod kit;
    pub mod logs;
    #[path = "../../examples/replicated_map/replica.rs"]
    pub mod replica;
}
