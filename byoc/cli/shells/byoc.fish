function __byoc_complete
    set -l given (commandline -opc)
    set -l program $given[1]
    set -e given[1]
    set -l word (commandline -ct)
    set -l replies (env _BYOC_COMPLETE=fish $program $given "$word" 2>/dev/null)
    if test (count $replies) -gt 0
        printf '%s\n' $replies
    else
        __fish_complete_path "$word"
    end
end
complete -c byoc -f -k -a '(__byoc_complete)'
