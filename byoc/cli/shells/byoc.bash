# Replies replace what follows the last character that bash breaks words at. macOS has bash 3.2, without
# mapfile and compopt.
_byoc() {
    local reply
    COMPREPLY=()
    while IFS= read -r reply; do COMPREPLY+=("$reply"); done < <(
        _BYOC_COMPLETE=bash "$1" "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" \
            "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null
    )
    case "${#COMPREPLY[@]} ${COMPREPLY[0]}" in
        "1 "*[=:/]) compopt -o nospace 2>/dev/null ;;
    esac
}
complete -o default -F _byoc byoc
