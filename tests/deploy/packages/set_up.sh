# As an operator sets both up: keys, and their public halves in the configurations of the packages.
gpu=GPU-5c9b1a02-7a14-4f43-9c1e-2b1f0e6a3d51
cd /etc/pointillist
pointillist keys generate leader --folder /var/lib/pointillist/leader/keys
pointillist keys generate helper --folder /var/lib/pointillist/helper/keys
pointillist keys generate host --gpu $gpu
public() {
    pointillist keys show "$1/identity.key" --json | grep -oP '"public_key": "\K\w+'
}
leader=$(public /var/lib/pointillist/leader/keys/leader)
helper=$(public /var/lib/pointillist/helper/keys/helper)
sed -i "s|^helper_pk = .*|helper_pk = \"$helper\"|" leader.toml
sed -i "s|^leader_pk = .*|leader_pk = \"$leader\"|" helper.toml
sed -i -e "s|^leaders = .*|leaders = [\"$leader\"]|; s|^helpers = .*|helpers = [\"$helper\"]|" \
    -e '/^gpus = /d; /^gpu_uuids = \[/,/^\]/d' \
    -e "s|^user = |gpus = [\"H100\"]\ngpu_uuids = [\"$gpu\"]\nuser = |" agent.toml
mkdir -p signed
