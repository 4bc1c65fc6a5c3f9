#!/bin/sh
# A worker in POSIX shell, with jq for the JSON. It runs one call at a time.

say() { jq --compact-output --null-input "$@"; }

add() { say --argjson id "$1" --argjson args "$2" '{type: "result", id: $id, value: ($args | add)}'; }

disk_free() {
    folder=$(printf '%s' "$2" | jq --raw-output '.[0]')
    if free=$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 {print $4}') && [ -n "$free" ]; then
        say --argjson id "$1" --argjson free "$free" '{type: "result", id: $id, value: $free}'
    else
        say --argjson id "$1" --arg folder "$folder" \
            '{type: "error", id: $id, name: "NoSuchFolder", message: "there is no \($folder)"}'
    fi
}

count() {
    for number in $(seq 0 $(($(printf '%s' "$2" | jq '.[0]') - 1))); do
        say --argjson id "$1" --argjson value "$number" '{type: "item", id: $id, value: $value}'
    done
    say --argjson id "$1" '{type: "result", id: $id}'
}

while IFS= read -r line; do
    type=$(printf '%s' "$line" | jq --raw-output .type)
    id=$(printf '%s' "$line" | jq .id)
    case $type in
        hello) say '{type: "ready", protocol: 1, name: "worker.sh", methods: ["add", "disk_free", "count"]}' ;;
        ping) say --argjson id "$id" '{type: "pong", id: $id}' ;;
        call) "$(printf '%s' "$line" | jq --raw-output .method)" "$id" "$(printf '%s' "$line" | jq --compact-output .args)" ;;
        stop) exit 0 ;;
    esac
done
