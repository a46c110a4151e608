# For others to source: point buildah and podman at a storage of this checkout's own, so that images of
# its users are left alone, and at settings under which they work as root without systemd.
images_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.tools/images
mkdir -p "$images_folder"
cat >"$images_folder/storage.conf" <<END
[storage]
driver = "overlay"
graphroot = "$images_folder/storage"
runroot = "$images_folder/run"
END
# Limits of a container are at most this machine's own.
cat >"$images_folder/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
export CONTAINERS_STORAGE_CONF="$images_folder/storage.conf" CONTAINERS_CONF="$images_folder/containers.conf"
