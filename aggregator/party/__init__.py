"""What every party's process needs: configuration, keys on disk, the channel, health."""
