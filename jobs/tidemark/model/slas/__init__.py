"""What `slas.toml` and `channels.toml` say."""
