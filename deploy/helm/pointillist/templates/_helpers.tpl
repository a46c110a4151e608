{{- define "pointillist.image" -}}
{{ .root.Values.image.registry }}/pointillist-{{ .name }}:{{ .root.Values.image.tag }}
{{- end }}

{{- define "pointillist.selector" -}}
app.kubernetes.io/name: pointillist
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "pointillist.labels" -}}
{{ include "pointillist.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "pointillist.fullname" -}}
{{ printf "%s-%s" .root.Release.Name .role | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* The log, as agent.toml, leader.toml and helper.toml name it. */}}
{{- define "pointillist.kafka" -}}
[transport.kafka]
bootstrap = [{{ range $at, $broker := .root.Values.kafka.bootstrap }}{{ if $at }}, {{ end }}{{ $broker | quote }}{{ end }}]
tls = {{ .root.Values.kafka.tls }}
{{- if .secret }}
{{- if .root.Values.kafka.tls }}
ca_file = "/run/pointillist/secrets/ca.pem"
{{- end }}
{{- with .root.Values.kafka.sasl }}
sasl = {{ . | quote }}
username = {{ $.username | quote }}
password_file = "/run/pointillist/secrets/password"
{{- end }}
{{- end }}
{{- end }}

{{- define "pointillist.pin" -}}
{{ required (printf "parties.%s: its identity key, hex" .name) (index .root.Values.parties .name) }}
{{- end }}

{{/* Nothing but memory and volumes can be written, no capability, no more to be had. */}}
{{- define "pointillist.hardened" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: { drop: [ALL] }
{{- end }}

{{- define "pointillist.nobody" -}}
runAsNonRoot: true
runAsUser: {{ .uid }}
runAsGroup: {{ .gid }}
fsGroup: {{ .gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "pointillist.memory" -}}
- name: run
  emptyDir: { medium: Memory, sizeLimit: 16Mi }
- name: tmp
  emptyDir: { sizeLimit: 1Gi }
{{- end }}

{{- define "pointillist.claim" -}}
metadata: { name: {{ .name }} }
spec:
  accessModes: [{{ .storage.accessMode | default "ReadWriteOnce" }}]
  {{- with .storage.className }}
  storageClassName: {{ . | quote }}
  {{- end }}
  resources: { requests: { storage: {{ .storage.size | quote }} } }
{{- end }}

{{- define "pointillist.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: http }
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: { path: /healthz, port: http }
  periodSeconds: 30
  failureThreshold: 4
{{- end }}

{{/* Whoever watches may read the counters; the kubelet is always let in. */}}
{{- define "pointillist.scraped" -}}
- from:
    - namespaceSelector:
        matchLabels: { kubernetes.io/metadata.name: {{ .root.Values.networkPolicies.monitoringNamespace | quote }} }
  ports:
    - { protocol: TCP, port: {{ .port }} }
{{- end }}

{{/* Refusals that a schema cannot say. */}}
{{- define "pointillist.checks" }}
{{- if and .Values.leader.enabled .Values.helper.enabled }}
{{- fail "leader.enabled and helper.enabled: expected one of them. Leader and Helper are run by two organisations, in two clusters: whoever has both reads every host's report" }}
{{- end }}
{{- if and .Values.web.enabled (not .Values.leader.enabled) }}
{{- fail "web.enabled: expected leader.enabled beside it: the pages read the Leader's releases" }}
{{- end }}
{{- if and .Values.helper.enabled .Values.networkPolicies.enabled (not .Values.helper.leaderNetworks) }}
{{- fail "helper.leaderNetworks: expected the networks that the Leader comes from: a policy without any lets everybody in" }}
{{- end }}
{{- if and .Values.parties.leader (eq .Values.parties.leader .Values.parties.helper) }}
{{- fail "parties.leader and parties.helper: expected two keys: one party that is both reads every host's report" }}
{{- end }}
{{- if and (or .Values.agent.enabled .Values.leader.enabled) (not .Values.kafka.bootstrap) }}
{{- fail "kafka.bootstrap: expected the brokers, host:port, got none" }}
{{- end }}
{{- if and .Values.kafka.sasl (not .Values.kafka.tls) }}
{{- fail "kafka.sasl: expected kafka.tls beside it: others could use what is sent" }}
{{- end }}
{{- end }}
