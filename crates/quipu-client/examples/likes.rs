//! Counts likes: one at a time with a value in return, and many at once.
//!
//! Run `quipu serve` in one terminal and `cargo run -p quipu-client --example likes` in another. An
//! argument names another server: `… --example likes quipu://:password@host:7379`.

use quipu_client::{AdderOptions, Client, Error, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "quipu://127.0.0.1:7379".to_owned());
    let client = Client::connect(&address, Options::default()).await?;

    // One at a time: sent again until the server answers, applied once.
    match client.add("likes:42", 1).await {
        Ok(likes) => println!("likes:42 is now {likes}"),
        Err(error) if error.is_known_not_applied() => println!("not counted: {error}"),
        Err(error @ Error::Unknown { .. }) => println!("counted once or not at all: {error}"),
        Err(error) => return Err(error.into()),
    }

    // Many at once: summed here, one request per counter and flush.
    let adder = client.adder(AdderOptions::default());
    let views = adder.counter("views:42");
    for _ in 0..10_000 {
        views.add(1).await?;
    }
    adder.flush().await?;
    let stats = adder.stats();
    println!("{} views in {} requests", stats.adds_acknowledged, stats.requests);

    let reading = client.read("views:42").await?;
    println!("views:42 shows {} ({}), exact: {}", reading.display, reading.value, reading.exact);
    Ok(())
}
